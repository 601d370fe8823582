import type { ReactNode } from "react";

import { formatCount, formatDuration, formatTime } from "../../formats/formats.ts";
import type { Job } from "../../live/jobs.ts";
import { Chart, Charts } from "../../parts/Chart.tsx";
import { Section } from "../../parts/Section.tsx";
import { activityOf, MINUTES } from "./activity.ts";

/** What happened in the last hour, minute by minute. */
export function Activity({ jobs, now }: { readonly jobs: readonly Job[]; readonly now: number }): ReactNode {
  const { since, started, ended, failed, waited } = activityOf(jobs, now);
  const nameOf = (index: number): string => `${formatTime(since + index * 60_000, now)}:`;
  const format = (count: number): string => `${formatCount(count)} a minute`;
  return (
    <Section title={`Jobs in the last ${MINUTES} minutes`}>
      <Charts>
        <Chart label="Submitted" values={started} format={format} nameOf={nameOf} />
        <Chart label="Ended" values={ended} format={format} nameOf={nameOf} />
        <Chart label="Failed" values={failed} format={format} nameOf={nameOf} />
        <Chart label="Longest from submission to start" values={waited} format={formatDuration} nameOf={nameOf} />
      </Charts>
    </Section>
  );
}
