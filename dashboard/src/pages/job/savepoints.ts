// The savepoints of a streaming job: of which jobs they are made, which were requested, and what came of them.
import type { JobChange, JobDetails, OperationResponse } from "../../api/types.ts";

/** A savepoint while the job goes on, or one with which it ends. */
export type SavepointKind = "savepoint" | "stop";

export type SavepointProgress =
  | { readonly state: "in progress" }
  | { readonly state: "made"; readonly location: string }
  | { readonly state: "failed"; readonly reason: string };

/** States of a job that has ended, or is about to. */
export const ENDING: readonly string[] = ["CANCELLING", "FAILING", "CANCELED", "FAILED", "FINISHED"];

/** Returns whether a savepoint can be requested of a job: it is a streaming job, and neither ended nor ending. */
export function takesSavepoints(job: Pick<JobDetails, "job-type" | "state">): boolean {
  return job["job-type"] === "STREAMING" && !ENDING.includes(job.state);
}

/** Returns what is known of a savepoint by the status of its request; undefined: the status was not read yet. */
export function progressOf(response: OperationResponse | undefined): SavepointProgress {
  if (response === undefined || response.status.id === "IN_PROGRESS") return { state: "in progress" };
  const cause = response.operation?.["failure-cause"];
  if (cause) return { state: "failed", reason: cause["stack-trace"] };
  return { state: "made", location: response.operation?.location ?? "" };
}

/** Returns what is known of a savepoint by the list of the job's changes. */
export function progressOfChange(change: JobChange): SavepointProgress {
  if (change.failure) return { state: "failed", reason: change.failure };
  return change.status === "COMPLETED" ? { state: "made", location: change.location ?? "" } : { state: "in progress" };
}

/** Returns the changes of a job that are requests for savepoints, the latest first. */
export function savepointsOf(changes: readonly JobChange[]): readonly JobChange[] {
  return changes.filter(({ kind }) => kind === "savepoint" || kind === "stop").toReversed();
}
