import { type ReactNode, useRef, useState } from "react";

import type { TextProblem } from "./document.ts";
import styles from "./Editor.module.css";

/** A text with numbered lines; lines with a problem are marked, and a click on a problem goes to its line. */
export function Editor(props: {
  readonly text: string;
  readonly problems: readonly TextProblem[];
  /** Absent: the text can only be read. */
  readonly onChange?: (text: string) => void;
}): ReactNode {
  const area = useRef<HTMLTextAreaElement>(null);
  const [scrolled, setScrolled] = useState(0);
  const wrong = new Set(props.problems.map((problem) => problem.line));
  const lines = props.text.split("\n");
  const goToLine = (line: number): void => {
    const element = area.current;
    if (element === null) return;
    const start = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
    element.focus();
    element.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  };
  return (
    <>
      <div className={styles["editor"]}>
        <div className={styles["numbers"]} aria-hidden="true">
          <ol style={{ transform: `translateY(${-scrolled}px)` }}>
            {lines.map((_, index) => (
              <li key={index} className={wrong.has(index + 1) ? styles["wrong"] : undefined}>
                {index + 1}
              </li>
            ))}
          </ol>
        </div>
        <textarea
          ref={area}
          aria-label={props.onChange === undefined ? "Python file" : "Job document"}
          readOnly={props.onChange === undefined}
          spellCheck={false}
          autoComplete="off"
          wrap="off"
          rows={Math.min(24, Math.max(10, lines.length + 1))}
          value={props.text}
          onChange={(event) => props.onChange?.(event.target.value)}
          onScroll={(event) => setScrolled(event.currentTarget.scrollTop)}
        />
      </div>
      {props.problems.length > 0 && (
        <ul className={styles["problems"]} aria-label="Problems">
          {props.problems.map((problem, index) => (
            <li key={index}>
              <button type="button" onClick={() => goToLine(problem.line)}>
                line {problem.line}
              </button>{" "}
              {problem.message}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
