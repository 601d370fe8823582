import { type ReactNode, useEffect, useState } from "react";

import { useApi } from "../api/queries.ts";
import type { Metric } from "../api/types.ts";
import { formatExactTime } from "../formats/formats.ts";
import { useClusterTime, useLive } from "../live/LiveProvider.tsx";
import { Answer } from "./Answer.tsx";
import { Chart, Charts } from "./Chart.tsx";
import { type Sample, samplesOf, withSample } from "./samples.ts";
import { Section } from "./Section.tsx";
import { Time } from "./Time.tsx";

/** How often values are drawn: those that have not changed, too. TaskManagers send theirs with their heartbeats. */
const PAUSE_MS = 2000;

/** A metric that is drawn: its id, its title, and how its values are written. */
export type ChartedMetric = readonly [id: string, label: string, format: (value: number) => string];

/** What a process measures of itself, as charts that begin when the page is opened. `path` is that of the process.
 *
 * `follow`: the stream of events has its metrics. That stream is the leader's, which does not know those of a standby:
 * the page of a JobManager reads them from the one that serves it.
 */
export function MetricCharts(props: { readonly path: string; readonly charts: readonly ChartedMetric[]; readonly follow?: boolean }): ReactNode {
  const { path, charts, follow = false } = props;
  const query = useApi<readonly Metric[]>(`${path}/metrics?get=${charts.map(([id]) => id).join(",")}`, follow ? { follow } : { everyMs: PAUSE_MS });
  const { data } = query;
  const { connection } = useLive();
  const now = useClusterTime();
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    if (data === undefined || connection !== "live" || query.isError) return undefined;
    const draw = (): void => setSamples((known) => withSample(known, data, Date.now()));
    draw();
    const timer = setInterval(draw, PAUSE_MS);
    return () => clearInterval(timer);
  }, [data, connection, query.isError]);
  const latest = samples.at(-1);
  const shown = charts.map((chart) => ({ chart, found: samplesOf(samples, chart[0]) })).filter(({ found }) => found.length > 0);
  return (
    <Section
      title="Metrics"
      aside={
        <span>
          Every {PAUSE_MS / 1000} s while this page is open{latest !== undefined && <>, the last time at <Time ms={latest.at} now={now} /></>}
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
