import type { ReactNode } from "react";

import styles from "./Table.module.css";

/** How a table is sorted by its columns: each of these has a link that sorts by it. */
export interface Sorting {
  readonly column: string;
  readonly descending: boolean;
  readonly hrefs: ReadonlyMap<string, string>;
}

/** A table that is scrolled by itself where it is wider than the page. */
export function Table(props: {
  readonly label: string;
  readonly columns: readonly ReactNode[];
  readonly sorting?: Sorting | undefined;
  readonly children: ReactNode;
}): ReactNode {
  return (
    <div className={styles["frame"]} role="region" aria-label={props.label} tabIndex={0}>
      <table className={styles["table"]}>
        <thead>
          <tr>
            {props.columns.map((column, index) => (
              <Head key={index} column={column} sorting={props.sorting} />
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

function Head({ column, sorting }: { readonly column: ReactNode; readonly sorting: Sorting | undefined }): ReactNode {
  const href = typeof column === "string" ? sorting?.hrefs.get(column) : undefined;
  if (sorting === undefined || href === undefined) return <th scope="col">{column}</th>;
  const direction = column !== sorting.column ? undefined : sorting.descending ? "descending" : "ascending";
  return (
    <th scope="col" aria-sort={direction}>
      <a href={href}>
        {column}
        {direction !== undefined && <span aria-hidden="true">{direction === "descending" ? " ↓" : " ↑"}</span>}
      </a>
    </th>
  );
}
