import type { ReactNode } from "react";

import type { JobAttempts } from "../../api/types.ts";
import { firstLine } from "../../formats/formats.ts";
import { Empty, Section } from "../../parts/Section.tsx";
import { Time } from "../../parts/Time.tsx";
import { Failure } from "./Failure.tsx";
import { failuresOf, type ShownFailure } from "./failures.ts";
import styles from "./FailuresTab.module.css";

const MOST_OF_HEADLINE = 500;

/** Every failure of a job: what ended it first, then the latest. */
export function FailuresTab({ attempts, now }: { readonly attempts: JobAttempts; readonly now: number }): ReactNode {
  const shown = failuresOf(attempts);
  const omitted = attempts["failures-omitted"] ?? 0;
  const summaries = attempts.failures ?? [];
  return (
    <>
      {shown.map((item, index) => (
        <Section key={index} title={titleOf(item)} aside={<Time ms={item.at} now={now} />}>
          <Failure failure={item.failure} />
        </Section>
      ))}
      {summaries.length > 1 && (
        <Section title="History" aside={omitted > 0 && `${omitted} between the first and the latest are not shown`}>
          <ol className={styles["history"]}>
            {summaries.toReversed().map((item, index) => (
              <li key={index}>
                <Time ms={item.timestamp} now={now} /> {item.kind}
                {item.region !== null && item.region !== undefined && `, region ${item.region}, attempt ${item.attempt ?? 0}`}
                {item["taskmanager-id"] && ` on ${item["taskmanager-id"]}`}
                {item.concurrent && ", together with the one before it"}: {firstLine(item.headline ?? "", MOST_OF_HEADLINE)}{" "}
                <span className={styles["labels"]}>
                  {Object.entries(item.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(" ")}
                </span>
              </li>
            ))}
          </ol>
        </Section>
      )}
      {shown.length === 0 && summaries.length === 0 && (
        <Section title="Failures">
          <Empty>Nothing of this job has failed.</Empty>
        </Section>
      )}
    </>
  );
}

function titleOf({ attempt, ended }: ShownFailure): string {
  if (attempt === null) return "Why the job failed";
  const { region, info } = attempt;
  const title = `attempt ${info.attempt} of region ${region.region} (${(region.steps ?? []).join(", ")})`;
  return ended ? `Why the job failed: ${title}` : `A${title.slice(1)}`;
}
