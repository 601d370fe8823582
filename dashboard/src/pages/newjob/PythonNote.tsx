import type { ReactNode } from "react";

import { Problem } from "../../parts/Answer.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import styles from "./NewJobPage.module.css";
import type { PythonFile } from "./usePythonFile.ts";

/** What becomes of a Python file: a job graph that it defines, or a program. */
export function PythonNote(props: {
  readonly file: File;
  readonly python: PythonFile;
  /** Which of its jobs is shown. */
  readonly chosen: string;
  readonly onChoose: (name: string) => void;
  readonly values: Readonly<Record<string, string>>;
  readonly onChange: (values: Readonly<Record<string, string>>) => void;
  readonly onRemove: () => void;
}): ReactNode {
  const { python } = props;
  const jobs = python.content?.jobs ?? [];
  return (
    <div className={styles["program"]}>
      {python.error !== null && <Problem error={python.error} />}
      <div role="status">{python.reading !== null && <Reading reading={python.reading} />}</div>
      {python.isProgram && (
        <>
          <p>
            This file defines no job graph, so it is submitted as a program: it runs on a TaskManager, as it is, and its steps are not
            known before. The JobManager neither runs nor imports it.
          </p>
          <label>
            Arguments
            <input value={props.values["args"] ?? ""} placeholder="--day 2026-01-01" onChange={(event) => props.onChange({ args: event.target.value })} />
          </label>
        </>
      )}
      {jobs.length > 1 && (
        <label>
          Job
          <select value={props.chosen} onChange={(event) => props.onChoose(event.target.value)}>
            {jobs.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <button type="button" onClick={props.onRemove}>
        Write a document instead
      </button>
    </div>
  );
}

function Reading({ reading }: { readonly reading: NonNullable<PythonFile["reading"]> }): ReactNode {
  return (
    <p>
      A TaskManager reads the file, as it runs all user code: <JobLink id={reading.id} name="the job that does so" /> is {reading.state}
      {reading.waitsFor !== "" && ` and waits for ${reading.waitsFor}`}.
    </p>
  );
}
