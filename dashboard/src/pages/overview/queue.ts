// The queue: as the ResourceManager has it, with what the events have said since.
import type { WaitingJob } from "../../api/types.ts";
import { hasEnded, type Job, shownState } from "../../live/jobs.ts";

/** A request that waits. */
export interface Waiting extends WaitingJob {
  /** Whether the ResourceManager has listed it; else only the job is known to wait. */
  readonly known: boolean;
}

/** Returns the requests in their order, without those of jobs that have ended; jobs that wait since come last. */
export function queueOf(listed: readonly WaitingJob[], jobs: readonly Job[]): readonly Waiting[] {
  const byId = new Map(jobs.map((job) => [job.jid, job]));
  const current = listed.filter(({ jobid }) => {
    const job = byId.get(jobid);
    return job === undefined || !hasEnded(job);
  });
  const ids = new Set(listed.map(({ jobid }) => jobid));
  const others = jobs
    .filter((job) => !ids.has(job.jid) && !hasEnded(job) && shownState(job) === "WAITING")
    .sort((one, other) => one["start-time"] - other["start-time"]);
  return [
    ...current.map((item) => ({ ...item, known: true })),
    ...others.map((job) => ({ jobid: job.jid, name: job.name, since: job["start-time"], known: false }) as Waiting),
  ];
}
