import { type ReactNode, useId } from "react";

import styles from "./Section.module.css";

/** A part of a page with its title. */
export function Section(props: {
  readonly title: string;
  readonly aside?: ReactNode;
  readonly children: ReactNode;
}): ReactNode {
  const id = useId();
  return (
    <section className={styles["section"]} aria-labelledby={id}>
      <header className={styles["head"]}>
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </header>
      {props.children}
    </section>
  );
}

/** What is said where there is nothing to show. */
export function Empty({ children }: { readonly children: ReactNode }): ReactNode {
  return <div className={styles["empty"]}>{children}</div>;
}
