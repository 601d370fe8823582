import type { ReactNode } from "react";

import styles from "./StateBadge.module.css";

export type Tone = "good" | "bad" | "busy" | "wait" | "quiet";

const TONES: Readonly<Record<string, Tone>> = {
  FINISHED: "good",
  LEADER: "good",
  FAILED: "bad",
  FAILING: "bad",
  RUNNING: "busy",
  DEPLOYING: "busy",
  RESTARTING: "wait",
  WAITING: "wait",
  SCHEDULED: "wait",
  CANCELLING: "wait",
  CANCELING: "wait",
  RECONCILING: "wait",
};

/** Returns how a state of a job or an attempt is coloured. */
export function toneOf(state: string): Tone {
  return TONES[state] ?? "quiet";
}

/** A state, as text and as a colour. */
export function StateBadge({ state }: { readonly state: string }): ReactNode {
  return <span className={`${styles["badge"]} ${styles[toneOf(state)]}`}>{state}</span>;
}
