import type { ReactNode } from "react";

import type { FailureInfo } from "../../api/types.ts";
import { firstLine, formatCount } from "../../formats/formats.ts";
import styles from "./Failure.module.css";

const MOST_SHOWN = 20_000;

/** A failure: its message, the lines of the user's code, and the traces folded. */
export function Failure({ failure }: { readonly failure: FailureInfo }): ReactNode {
  const frames = failure.frames ?? [];
  return (
    <div className={styles["failure"]}>
      <p className={styles["kind"]}>
        {failure.kind}
        {failure.step && ` in step ${failure.step}`}
        {failure["error-class"] && ` · ${failure["error-class"]}`}
      </p>
      <Text label="Message" text={failure.message} />
      {failure["query-context"] && <Text label="Where in the query" text={failure["query-context"]} />}
      {frames.length > 0 && (
        <ol className={styles["frames"]}>
          {frames.map((frame, index) => (
            <li key={index}>
              <code>
                {frame.file}:{frame.line}
              </code>{" "}
              in {frame.function}
              {frame.source && <pre>{firstLine(frame.source)}</pre>}
            </li>
          ))}
        </ol>
      )}
      <Folded title="Python's stack trace" text={failure["stack-trace"]} />
      <Folded title="The JVM's stack trace" text={failure["jvm-stack-trace"]} />
    </div>
  );
}

function Folded({ title, text }: { readonly title: string; readonly text: string | null | undefined }): ReactNode {
  if (!text) return null;
  return (
    <details>
      <summary>{title}</summary>
      <Text label={title} text={text} />
    </details>
  );
}

/** A text of any length: the beginning of one that a browser would need long to lay out. It is scrolled by itself. */
function Text({ label, text }: { readonly label: string; readonly text: string }): ReactNode {
  return (
    <pre className={styles["message"]} tabIndex={0} role="region" aria-label={label}>
      {text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… and ${formatCount(text.length - MOST_SHOWN)} characters more` : text}
    </pre>
  );
}
