import { type ReactNode, useState } from "react";

import styles from "./Command.module.css";

/** A command of the command line, with a button that copies it. */
export function Command({ text }: { readonly text: string }): ReactNode {
  const [copied, setCopied] = useState(false);
  const copy = (): void => {
    void navigator.clipboard.writeText(text).then(() => setCopied(true));
  };
  return (
    <div className={styles["command"]}>
      <code>{text}</code>
      {isSecureContext && (
        <button type="button" onClick={copy} aria-label={`Copy ${text}`}>
          {copied ? "Copied" : "Copy"}
        </button>
      )}
    </div>
  );
}
