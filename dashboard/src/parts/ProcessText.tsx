import type { ReactNode } from "react";

import { useApi, useText } from "../api/queries.ts";
import type { ThreadDump } from "../api/types.ts";
import { Answer } from "./Answer.tsx";
import styles from "./ProcessText.module.css";

const MOST_SHOWN = 200_000;

/** The end of a log of a process. */
export function ProcessLog({ path }: { readonly path: string }): ReactNode {
  const query = useText(path);
  return (
    <Answer query={query}>
      {(text) => (
        <pre className={styles["text"]} tabIndex={0} aria-label="Log">
          {text.slice(-MOST_SHOWN) || "The log is empty."}
        </pre>
      )}
    </Answer>
  );
}

/** What every thread of a process does. */
export function Threads({ path }: { readonly path: string }): ReactNode {
  const query = useApi<ThreadDump>(path);
  return (
    <>
      <button type="button" onClick={() => void query.refetch()}>
        Take another
      </button>
      <Answer query={query}>
        {({ threadInfos }) => (
          <pre className={styles["text"]} tabIndex={0} aria-label="Threads">
            {threadInfos.map((thread) => `${thread.threadName}\n${thread.stringifiedThreadInfo}`).join("\n")}
          </pre>
        )}
      </Answer>
    </>
  );
}
