import { type ReactNode, useEffect, useRef, useState } from "react";

import { goTo } from "../../address/useAddress.ts";
import type { JobAttempts } from "../../api/types.ts";
import { formatBytes, formatCount } from "../../formats/formats.ts";
import { Problem } from "../../parts/Answer.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import styles from "./LogsTab.module.css";
import { useOutput } from "./useOutput.ts";

const MOST_LINES = 5000;

/** What user code printed, by attempt; it stays at the end until the reader scrolls. */
export function LogsTab(props: {
  readonly id: string;
  readonly attempts: JobAttempts;
  /** `region/attempt`, as the address has it; else the latest is shown. */
  readonly attempt: string;
}): ReactNode {
  const { id, attempts } = props;
  const begun = (attempts.regions ?? [])
    .flatMap((region) => (region.attempts ?? []).map((attempt) => ({ region: region.region, ...attempt })))
    .filter((attempt) => attempt["taskmanager-id"]);
  const choose = (step: string): void => goTo({ page: "job", id, tab: "logs", step }, true);
  const keyOf = (attempt: (typeof begun)[number]): string => `${attempt.region}/${attempt.attempt}`;
  const shown = begun.find((attempt) => keyOf(attempt) === props.attempt) ?? begun.at(-1);
  if (shown === undefined)
    return (
      <Section title="Logs">
        <Empty>Nothing of this job has run yet, so nothing was printed.</Empty>
      </Section>
    );
  return (
    <Section
      title="Logs"
      aside={
        <label>
          Attempt{" "}
          <select value={keyOf(shown)} onChange={(event) => choose(event.target.value)}>
            {begun.map((attempt) => (
              <option key={keyOf(attempt)} value={keyOf(attempt)}>
                region {attempt.region}, attempt {attempt.attempt} ({attempt.state})
              </option>
            ))}
          </select>
        </label>
      }
    >
      <Output key={keyOf(shown)} id={id} region={shown.region} attempt={shown.attempt} />
    </Section>
  );
}

function Output(props: {
  readonly id: string;
  readonly region: number;
  readonly attempt: number;
}): ReactNode {
  const output = useOutput(props.id, props.region, props.attempt);
  const [search, setSearch] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  const lines = output.text.split("\n");
  const found = search === "" ? lines : lines.filter((line) => line.toLowerCase().includes(search.toLowerCase()));
  useEffect(() => {
    if (follows.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [output.text, search]);
  const onScroll = (): void => {
    const element = box.current;
    if (element !== null) follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < 8;
  };
  return (
    <>
      <div className={styles["tools"]}>
        <label>
          Search <input type="search" value={search} onChange={(event) => setSearch(event.target.value)} />
        </label>
        <span>
          {search !== "" && `${formatCount(found.length)} lines · `}
          {formatBytes(output.size)}
          {output.skipped > 0 && `, of which the first ${formatBytes(output.skipped)} are not shown`}
          {output.complete ? "" : " · live"}
        </span>
      </div>
      {output.error !== null && <Problem error={output.error} />}
      <pre ref={box} className={styles["output"]} onScroll={onScroll} tabIndex={0} aria-label="Output">
        {output.text === "" ? "Nothing was printed yet." : found.slice(-MOST_LINES).join("\n")}
      </pre>
    </>
  );
}
