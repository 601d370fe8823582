import { type ReactNode, useState } from "react";

import styles from "./Command.module.css";

/** A text that readers want to copy, such as a command or a path, with a button that does it. */
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
