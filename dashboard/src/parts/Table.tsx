import type { ReactNode } from "react";

import styles from "./Table.module.css";

/** A table that is scrolled by itself where it is wider than the page. */
export function Table(props: {
  readonly label: string;
  readonly columns: readonly ReactNode[];
  readonly children: ReactNode;
}): ReactNode {
  return (
    <div className={styles["frame"]} role="region" aria-label={props.label} tabIndex={0}>
      <table className={styles["table"]}>
        <thead>
          <tr>
            {props.columns.map((column, index) => (
              <th key={index} scope="col">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}
