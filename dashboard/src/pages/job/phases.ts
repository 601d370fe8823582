// Where the time of an attempt went: one phase for each state that it was in.
import type { AttemptInfo } from "../../api/types.ts";

export interface Phase {
  readonly state: string;
  readonly from: number;
  readonly to: number;
}

/** From when the outcome of an attempt was accepted, until its files are published; its state is RUNNING then. */
const PUBLISHING = "PUBLISHING";
const ENDED = new Set(["FINISHED", "FAILED", "CANCELED"]);

/** Returns the phases of an attempt in order; that of an attempt which has not ended ends `now`. */
export function phasesOf(attempt: Pick<AttemptInfo, "timestamps" | "state" | "publishing">, now: number): readonly Phase[] {
  const entered = [...Object.entries(attempt.timestamps ?? {}), [PUBLISHING, attempt.publishing ?? 0] as const]
    .filter(([, ms]) => ms > 0)
    .sort(([, one], [, other]) => one - other);
  return entered
    .map(([state, from], index) => ({ state, from, to: Math.max(from, entered[index + 1]?.[1] ?? now) }))
    .filter(({ state }) => !ENDED.has(state));
}

/** Returns the time from the first phase to the last, at least a millisecond. */
export function rangeOf(phases: readonly Phase[]): { readonly from: number; readonly to: number } {
  const from = phases.reduce((least, phase) => Math.min(least, phase.from), Number.POSITIVE_INFINITY);
  const to = phases.reduce((most, phase) => Math.max(most, phase.to), Number.NEGATIVE_INFINITY);
  return phases.length === 0 ? { from: 0, to: 1 } : { from, to: Math.max(to, from + 1) };
}
