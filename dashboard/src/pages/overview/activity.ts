// How many jobs began and ended in each of the last minutes.
import type { Job } from "../../live/jobs.ts";

export const MINUTES = 60;
const MINUTE_MS = 60_000;

export interface Activity {
  /** The beginning of the first minute. */
  readonly since: number;
  readonly started: readonly number[];
  readonly ended: readonly number[];
  readonly failed: readonly number[];
}

/** Returns the counts of the last minutes at a time of the cluster's clock, oldest first. */
export function activityOf(jobs: readonly Job[], now: number): Activity {
  const since = (Math.floor(now / MINUTE_MS) - MINUTES + 1) * MINUTE_MS;
  const [started, ended, failed] = [0, 1, 2].map(() => new Array<number>(MINUTES).fill(0)) as [number[], number[], number[]];
  const count = (counts: number[], ms: number): void => {
    const minute = Math.floor((ms - since) / MINUTE_MS);
    if (minute >= 0 && minute < MINUTES) counts[minute] = (counts[minute] ?? 0) + 1;
  };
  for (const job of jobs) {
    count(started, job["start-time"]);
    if (job["end-time"] < 0) continue;
    count(ended, job["end-time"]);
    if (job.state === "FAILED") count(failed, job["end-time"]);
  }
  return { since, started, ended, failed };
}
