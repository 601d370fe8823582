import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";

import styles from "./Answer.module.css";

/** What went wrong, and what to do. */
export function Problem({ error }: { readonly error: unknown }): ReactNode {
  return (
    <div role="alert" className={styles["problem"]}>
      {textOf(error)}
    </div>
  );
}

/** Shows what a query has read; until then that it is being read, or why it cannot be. */
export function Answer<T>(props: {
  readonly query: UseQueryResult<T>;
  readonly children: (data: T) => ReactNode;
}): ReactNode {
  const { data, error, isPending } = props.query;
  return (
    <>
      {error !== null && <Problem error={error} />}
      {data !== undefined && props.children(data)}
      {isPending && error === null && <p className={styles["pending"]}>Reading …</p>}
    </>
  );
}

function textOf(error: unknown): string {
  if (error instanceof Error && !(error instanceof TypeError)) return error.message;
  return "No JobManager answers at this address. The page tries again by itself."; // what `fetch` throws is a TypeError
}
