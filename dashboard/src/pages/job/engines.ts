// Where Spark works for a job now: its engines are those of the TaskManagers that run its attempts.
import type { JobAttempts } from "../../api/types.ts";

/** Returns the TaskManagers on which attempts of a job run, each once. */
export function enginesOf(attempts: JobAttempts | undefined): readonly string[] {
  const found = new Set<string>();
  for (const region of attempts?.regions ?? [])
    for (const attempt of region.attempts ?? []) if (attempt.state === "RUNNING" && attempt["taskmanager-id"]) found.add(attempt["taskmanager-id"]);
  return [...found];
}
