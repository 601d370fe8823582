import type { ReactNode } from "react";

import styles from "./Facts.module.css";

/** Names with their values. */
export function Facts({ items }: { readonly items: readonly (readonly [string, ReactNode])[] }): ReactNode {
  return (
    <dl className={styles["facts"]}>
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
