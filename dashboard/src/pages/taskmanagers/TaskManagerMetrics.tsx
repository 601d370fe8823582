import { type ReactNode, useEffect, useState } from "react";

import { useApi } from "../../api/queries.ts";
import type { Metric } from "../../api/types.ts";
import { formatBytes, formatCount, formatExactTime } from "../../formats/formats.ts";
import { useClusterTime } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { Chart, Charts } from "../../parts/Chart.tsx";
import { Section } from "../../parts/Section.tsx";
import { Time } from "../../parts/Time.tsx";
import { type Sample, samplesOf, withSample } from "./samples.ts";

/** How often the metrics are read: no event reports them. A TaskManager sends them with its heartbeats. */
const PAUSE_MS = 2000;
const CHARTS: readonly (readonly [string, string, (value: number) => string])[] = [
  ["slots_used", "Slots in use", (value) => formatCount(value)],
  ["running_tasks", "Running tasks", (value) => formatCount(value)],
  ["engine_memory_bytes", "Memory of the engine", formatBytes],
  ["runner_memory_bytes", "Memory of the runners", formatBytes],
  ["engine_restarts", "Restarts of the engine", (value) => formatCount(value)],
  ["log_lines_dropped", "Dropped lines of the log", (value) => formatCount(value)],
];
const IDS = CHARTS.map(([id]) => id).join(",");

/** What a TaskManager measures of itself, as charts that begin when the page is opened. `path` is that of the TaskManager. */
export function TaskManagerMetrics({ path }: { readonly path: string }): ReactNode {
  const query = useApi<readonly Metric[]>(`${path}/metrics?get=${IDS}`, { everyMs: PAUSE_MS });
  const { data, dataUpdatedAt } = query;
  const now = useClusterTime();
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    if (data !== undefined) setSamples((known) => withSample(known, data, dataUpdatedAt));
  }, [data, dataUpdatedAt]);
  const latest = samples.at(-1);
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
            {CHARTS.map(([id, label, format]) => {
              const found = samplesOf(samples, id);
              const nameOf = (index: number): string => `${formatExactTime(found[index]?.at ?? -1)}:`;
              return <Chart key={id} label={label} values={found.map(({ value }) => value)} format={format} nameOf={nameOf} />;
            })}
          </Charts>
        )}
      </Answer>
    </Section>
  );
}
