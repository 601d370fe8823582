// How many jobs began and ended in each of the last minutes, and how long they had to wait.
import { elapsed } from "../../formats/formats.ts";
import type { Job } from "../../live/jobs.ts";

export const MINUTES = 60;
const MINUTE_MS = 60_000;

export interface Activity {
  /** The beginning of the first minute. */
  readonly since: number;
  readonly started: readonly number[];
  readonly ended: readonly number[];
  readonly failed: readonly number[];
  /** The longest time from submission to the first attempt that ran, of the jobs that began to run in a minute. */
  readonly waited: readonly number[];
}

/** Returns the counts of the last minutes at a time of the cluster's clock, oldest first. */
export function activityOf(jobs: readonly Job[], now: number): Activity {
  const since = (Math.floor(now / MINUTE_MS) - MINUTES + 1) * MINUTE_MS;
  const [started, ended, failed, waited] = [zeros(), zeros(), zeros(), zeros()];
  const change = (values: number[], ms: number, changed: (value: number) => number): void => {
    const minute = Math.floor((ms - since) / MINUTE_MS);
    if (minute >= 0 && minute < MINUTES) values[minute] = changed(values[minute] ?? 0);
  };
  const count = (counts: number[], ms: number): void => change(counts, ms, (value) => value + 1);
  for (const job of jobs) {
    count(started, job["start-time"]);
    const firstRun = job["first-run"] ?? -1;
    if (firstRun >= 0) change(waited, firstRun, (value) => Math.max(value, elapsed(job["start-time"], firstRun)));
    if (job["end-time"] < 0) continue;
    count(ended, job["end-time"]);
    if (job.state === "FAILED") count(failed, job["end-time"]);
  }
  return { since, started, ended, failed, waited };
}

function zeros(): number[] {
  return new Array<number>(MINUTES).fill(0);
}
