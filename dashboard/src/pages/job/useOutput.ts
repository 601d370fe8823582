import { useEffect, useState } from "react";

import { ApiError, get } from "../../api/http.ts";
import type { JobLogs } from "../../api/types.ts";

const TAIL_BYTES = 256 * 1024;
const MOST_CHARACTERS = 2_000_000;
const PAUSE_MS = 1000;

export interface Output {
  readonly text: string;
  readonly size: number;
  /** How many bytes at the beginning are not shown. */
  readonly skipped: number;
  readonly complete: boolean;
  readonly error: unknown;
}

const NOTHING: Output = { text: "", size: 0, skipped: 0, complete: false, error: null };

/** Reads the output of an attempt from near its end, and follows it until it is complete. */
export function useOutput(job: string, region: number, attempt: number, ended: boolean): Output {
  const [output, setOutput] = useState(NOTHING);
  useEffect(() => {
    const end = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let offset = -TAIL_BYTES;
    const read = async (): Promise<void> => {
      try {
        const path = `/jobs/${job}/logs?region=${region}&attempt=${attempt}&offset=${offset}`;
        const part = (await get<JobLogs>(path, end.signal)).logs?.[0];
        const begins = offset < 0;
        if (part !== undefined) {
          offset = part["next-offset"];
          setOutput((before) => ({
            text: ((begins ? "" : before.text) + (part.text ?? "")).slice(-MOST_CHARACTERS),
            size: part.size ?? 0,
            skipped: begins ? (part.offset ?? 0) : before.skipped,
            complete: part.complete ?? false,
            error: null,
          }));
        }
        const all = part === undefined ? ended : part.complete && part["next-offset"] >= (part.size ?? 0);
        if (!all) timer = setTimeout(() => void read(), PAUSE_MS);
      } catch (error) {
        if (end.signal.aborted) return;
        setOutput((before) => ({ ...before, error }));
        if (!(error instanceof ApiError) || error.status === 503) timer = setTimeout(() => void read(), PAUSE_MS);
      }
    };
    void read();
    return () => {
      end.abort();
      clearTimeout(timer);
    };
  }, [job, region, attempt, ended]);
  return output;
}
