// What is known of the jobs of the cluster, from the events of one connection after another. A pure reducer.
import type { JobsOverviewEntry } from "../api/types.ts";
import { elapsed } from "../formats/formats.ts";

export type Job = JobsOverviewEntry;

export interface LiveJobs {
  /** By id: all that have not ended, and the latest that have. */
  readonly jobs: ReadonlyMap<string, Job>;
  /** The jobs of a connection that has not listed all of them yet; null: `jobs` is up to date. */
  readonly incoming: ReadonlyMap<string, Job> | null;
  readonly connection: "connecting" | "live" | "lost";
  /** Since when nothing has been heard of the cluster, by the clock of the browser; null while the connection lives. */
  readonly lostSince: number | null;
  /** The clock of the cluster minus the clock of the browser. */
  readonly clockOffset: number;
}

export type LiveEvent =
  | { readonly kind: "opened" }
  | { readonly kind: "changed"; readonly jobs: readonly Job[]; readonly now: number }
  | { readonly kind: "listed" }
  /** What was known is up to date again: only what has changed since is sent. */
  | { readonly kind: "resumed" }
  | { readonly kind: "lost"; readonly lastHeard: number };

export const NOTHING_KNOWN: LiveJobs = {
  jobs: new Map(),
  incoming: new Map(),
  connection: "connecting",
  lostSince: null,
  clockOffset: 0,
};

/** How many ended jobs are remembered. */
export const MOST_ENDED = 1000;

/** Returns what is known after an event. */
export function reduceLive(state: LiveJobs, event: LiveEvent): LiveJobs {
  switch (event.kind) {
    case "opened":
      return { ...state, incoming: new Map() };
    case "changed":
      return changed(state, event.jobs, event.now);
    case "listed":
      return {
        ...state,
        jobs: state.incoming === null ? state.jobs : withoutOldest(state.incoming),
        incoming: null,
        connection: "live",
        lostSince: null,
      };
    case "resumed":
      return { ...state, incoming: null, connection: "live", lostSince: null };
    case "lost":
      // What was lost first is older than what a later attempt could not reach.
      return { ...state, connection: "lost", lostSince: state.lostSince ?? event.lastHeard };
  }
}

/** Returns the state as readers know it: a job that is RUNNING and of which nothing runs is WAITING. */
export function shownState(job: Pick<Job, "state" | "waits-for">): string {
  return job["waits-for"] ? "WAITING" : job.state;
}

/** Returns whether a job has ended. */
export function hasEnded(job: Pick<Job, "end-time">): boolean {
  return job["end-time"] >= 0;
}

/** Returns how long a job has run, at a time of the cluster's clock. */
export function durationOf(job: Pick<Job, "start-time" | "end-time">, clusterNow: number): number {
  return elapsed(job["start-time"], hasEnded(job) ? job["end-time"] : clusterNow);
}

/** Returns the time of the cluster: it stands still while nothing is heard of the cluster. */
export function clusterTime(state: LiveJobs, now: number): number {
  return (state.lostSince ?? now) + state.clockOffset;
}

function changed(state: LiveJobs, lines: readonly Job[], now: number): LiveJobs {
  if (lines.length === 0) return state;
  const jobs = new Map(state.incoming ?? state.jobs);
  let clockOffset = state.clockOffset;
  for (const job of lines) {
    jobs.set(job.jid, job);
    if (!hasEnded(job)) clockOffset = job["start-time"] + job.duration - now;
  }
  if (state.incoming !== null) return { ...state, incoming: jobs, clockOffset };
  return { ...state, jobs: withoutOldest(jobs), clockOffset };
}

function withoutOldest(jobs: ReadonlyMap<string, Job>): ReadonlyMap<string, Job> {
  let ended = 0;
  for (const job of jobs.values()) if (hasEnded(job)) ended += 1;
  if (ended <= MOST_ENDED * 1.2) return jobs; // sorting them for each one that ends would be slow
  const latest = [...jobs.values()].filter(hasEnded).sort((one, other) => other["end-time"] - one["end-time"]);
  const forgotten = new Set(latest.slice(MOST_ENDED).map((job) => job.jid));
  return new Map([...jobs].filter(([id]) => !forgotten.has(id)));
}
