import { type ReactNode, useEffect, useState } from "react";

import { useApi } from "../api/queries.ts";
import type { Metric } from "../api/types.ts";
import { formatExactTime } from "../formats/formats.ts";
import { useClusterTime } from "../live/LiveProvider.tsx";
import { Answer } from "./Answer.tsx";
import { Chart, Charts } from "./Chart.tsx";
import { type Sample, samplesOf, withSample } from "./samples.ts";
import { Section } from "./Section.tsx";
import { Time } from "./Time.tsx";

/** How often metrics are read: no event reports them. TaskManagers send theirs with their heartbeats. */
const PAUSE_MS = 2000;

/** A metric that is drawn: its id, its title, and how its values are written. */
export type ChartedMetric = readonly [id: string, label: string, format: (value: number) => string];

/** What a process measures of itself, as charts that begin when the page is opened. `path` is that of the process. */
export function MetricCharts({ path, charts }: { readonly path: string; readonly charts: readonly ChartedMetric[] }): ReactNode {
  const query = useApi<readonly Metric[]>(`${path}/metrics?get=${charts.map(([id]) => id).join(",")}`, { everyMs: PAUSE_MS });
  const { data, dataUpdatedAt } = query;
  const now = useClusterTime();
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    if (data !== undefined) setSamples((known) => withSample(known, data, dataUpdatedAt));
  }, [data, dataUpdatedAt]);
  const latest = samples.at(-1);
  const shown = charts.map((chart) => ({ chart, found: samplesOf(samples, chart[0]) })).filter(({ found }) => found.length > 0);
  return (
    <Section
      title="Metrics"
      aside={
        <span>
          Read every {PAUSE_MS / 1000} s while this page is open{latest !== undefined && <>, the last time at <Time ms={latest.at} now={now} /></>}
        </span>
      }
    >
      <Answer query={query}>
        {() => (
          <Charts>
            {shown.map(({ chart: [id, label, format], found }) => {
              const nameOf = (index: number): string => `${formatExactTime(found[index]?.at ?? -1)}:`;
              return <Chart key={id} label={label} values={found.map(({ value }) => value)} format={format} nameOf={nameOf} />;
            })}
          </Charts>
        )}
      </Answer>
    </Section>
  );
}
