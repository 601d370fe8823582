import type { ReactNode } from "react";

import styles from "./Progress.module.css";

/** How much of something is done, as a bar and as numbers. */
export function Progress(props: { readonly done: number; readonly total: number; readonly label: string }): ReactNode {
  return (
    <span className={styles["progress"]}>
      <progress value={props.done} max={Math.max(1, props.total)} aria-label={props.label} />
      <span>
        {props.done}/{props.total}
      </span>
    </span>
  );
}
