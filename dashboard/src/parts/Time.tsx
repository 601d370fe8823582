import type { ReactNode } from "react";

import { formatDuration, formatExactTime, formatTime } from "../formats/formats.ts";
import styles from "./Time.module.css";

/** A time in the reader's zone, exact on hover. */
export function Time({ ms, now }: { readonly ms: number; readonly now: number }): ReactNode {
  if (ms < 0) return <span>–</span>;
  return (
    <time className={styles["time"]} dateTime={formatExactTime(ms)} title={formatExactTime(ms)}>
      {formatTime(ms, now)}
    </time>
  );
}

/** A duration, exact on hover. */
export function Duration({ ms }: { readonly ms: number }): ReactNode {
  return <span className={styles["time"]} title={`${Math.round(ms)} ms`}>{formatDuration(ms)}</span>;
}
