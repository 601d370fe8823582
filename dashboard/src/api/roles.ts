// What a caller may do, so that pages offer nothing else. The cluster decides: this only hides.
import type { CallerInfo } from "./types.ts";

const ROLES = ["viewer", "submitter", "operator", "admin"] as const;

/** Returns whether a caller has this role, or one that includes it. */
export function hasRole(caller: Pick<CallerInfo, "role"> | undefined, role: (typeof ROLES)[number]): boolean {
  return caller !== undefined && ROLES.indexOf(caller.role) >= ROLES.indexOf(role);
}

/** Returns whether a caller may cancel a job, or run it again. */
export function mayChangeJob(caller: Pick<CallerInfo, "role" | "name"> | undefined, submittedBy: string): boolean {
  return hasRole(caller, "operator") || (hasRole(caller, "submitter") && caller?.name === submittedBy);
}
