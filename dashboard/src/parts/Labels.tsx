import type { ReactNode } from "react";

import { ALL_JOBS, writeAddress } from "../address/address.ts";
import styles from "./Labels.module.css";

/** The labels of a job; each leads to the jobs that have it. */
export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> | undefined }): ReactNode {
  return (
    <span className={styles["labels"]}>
      {Object.entries(labels ?? {}).map(([key, value]) => (
        <a key={key} href={writeAddress({ page: "jobs", filter: { ...ALL_JOBS, label: `${key}=${value}` } })}>
          {key}={value}
        </a>
      ))}
    </span>
  );
}
