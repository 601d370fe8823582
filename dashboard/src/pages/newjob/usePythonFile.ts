import { useEffect, useRef, useState } from "react";

import { get, send } from "../../api/http.ts";
import type { JobAttempts, ResultTable } from "../../api/types.ts";
import { hasEnded, type Job, shownState } from "../../live/jobs.ts";
import { useLive } from "../../live/LiveProvider.tsx";
import { importsFlintlock, type PythonContent, readContent, readingDocument } from "./python.ts";
import { submitJob } from "./submission.ts";

export interface PythonFile {
  readonly text: string;
  /** What it defines; null: that is not known yet, or it is a program. */
  readonly content: PythonContent | null;
  /** The job that reads it, and in which state that is; null: none does, or it has ended. */
  readonly reading: { readonly id: string; readonly state: string; readonly waitsFor: string } | null;
  readonly isProgram: boolean;
  readonly error: unknown;
}

interface Known {
  readonly text: string;
  readonly job: string;
  readonly content: PythonContent | null;
  readonly isProgram: boolean;
  readonly error: unknown;
}

const NOTHING: Known = { text: "", job: "", content: null, isProgram: false, error: null };

/** Has a TaskManager read a Python file, with the files beside it; a file that defines no graph is a program. */
export function usePythonFile(file: File | null, others: readonly File[]): PythonFile {
  const [known, setKnown] = useState(NOTHING);
  const running = useRef(""); // the job that has to be cancelled when the page is left
  const { jobs } = useLive();
  const job = known.job === "" ? undefined : jobs.get(known.job);
  const ended = job !== undefined && hasEnded(job);
  useEffect(() => {
    setKnown(NOTHING);
    if (file === null) return undefined;
    const end = new AbortController();
    const begin = async (): Promise<void> => {
      const text = await file.text();
      setKnown({ ...NOTHING, text, isProgram: !importsFlintlock(text) });
      if (!importsFlintlock(text)) return;
      const submitted = await submitJob(readingDocument(file.name, others.map(({ name }) => name)), [file, ...others], end.signal);
      if (end.signal.aborted) cancel(submitted);
      else {
        running.current = submitted;
        setKnown((before) => ({ ...before, job: submitted }));
      }
    };
    begin().catch((error: unknown) => {
      if (!end.signal.aborted) setKnown((before) => ({ ...before, error }));
    });
    return () => {
      end.abort();
      if (running.current !== "") cancel(running.current);
      running.current = "";
    };
  }, [file, others]);
  useEffect(() => {
    if (!ended || job === undefined) return undefined;
    running.current = "";
    const end = new AbortController();
    outcomeOf(job, end.signal).then(
      (content) => setKnown((before) => ({ ...before, job: "", content, isProgram: content.jobs.length === 0 && content.problems.length === 0 })),
      (error: unknown) => {
        if (!end.signal.aborted) setKnown((before) => ({ ...before, job: "", error }));
      },
    );
    return () => end.abort();
  }, [ended, known.job]);
  const reading = known.job === "" ? null : { id: known.job, state: job === undefined ? "CREATED" : shownState(job), waitsFor: job?.["waits-for"] ?? "" };
  return { text: known.text, content: known.content, reading, isProgram: known.isProgram, error: known.error };
}

async function outcomeOf(job: Job, signal: AbortSignal): Promise<PythonContent> {
  if (job.state === "FINISHED") return readContent(await get<ResultTable>(`/jobs/${job.jid}/results/plan`, signal));
  const { failure } = await get<JobAttempts>(`/jobs/${job.jid}/attempts`, signal);
  throw new Error(`The file could not be read: the job that reads it is ${job.state}.\n${failure?.message ?? ""}`);
}

function cancel(job: string): void {
  send(`/jobs/${job}`, { method: "PATCH" }).catch(() => undefined); // it may have ended, and ends by itself after a minute
}
