import { type ReactNode, useEffect, useState } from "react";

import { useApi } from "../../api/queries.ts";
import type { CheckpointsResponse, CompletedCheckpoint, QueriesResponse, QueryInfo } from "../../api/types.ts";
import { formatBytes, formatCount, formatDuration, formatExactTime } from "../../formats/formats.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Chart, Charts } from "../../parts/Chart.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { QueryFigures } from "./QueryFigures.tsx";
import { byQuery, rateOf, watermarkLag, withBatches, withFigures } from "./batches.ts";

/** The queries of a streaming job: their rates, batches, backlog, watermark and state as charts. */
export function StreamingTab({ id, now, ended }: { readonly id: string; readonly now: number; readonly ended: boolean }): ReactNode {
  const query = useApi<CheckpointsResponse>(`/jobs/${id}/checkpoints`, { follow: !ended });
  const figures = useApi<QueriesResponse>(`/jobs/${id}/queries`, { follow: !ended });
  const [batches, setBatches] = useState<readonly CompletedCheckpoint[]>([]);
  useEffect(() => {
    if (query.data !== undefined) setBatches((known) => withBatches(known, query.data));
  }, [query.data]);
  const [history, setHistory] = useState<readonly QueryInfo[]>([]);
  useEffect(() => {
    if (figures.data !== undefined) setHistory((known) => withFigures(known, figures.data));
  }, [figures.data]);
  return (
    <Answer query={query}>
      {() => (
        <>
          {batches.length === 0 && (
            <Section title="Batches">
              <Empty>No batch was committed yet. The first one appears here as soon as it is.</Empty>
            </Section>
          )}
          {(figures.data?.queries ?? [])
            .filter((item) => item.batch < 0 && (item["running-since"] ?? 0) > 0)
            .map((item) => (
              <Section key={item.name} title={`First batch of ${item.name}`}>
                <QueryFigures query={item} now={now} />
              </Section>
            ))}
          {[...byQuery(batches)].map(([uid, items]) => (
            <Query key={uid} uid={uid} batches={items} history={history.filter((item) => item.uid === uid)} figures={figures.data?.queries.find((item) => item.uid === uid)} now={now} />
          ))}
        </>
      )}
    </Answer>
  );
}

function Query(props: {
  readonly uid: string;
  readonly batches: readonly CompletedCheckpoint[];
  /** What Spark reports of it; undefined if it does not run. */
  readonly figures: QueryInfo | undefined;
  /** The same of earlier batches, since the page was opened. */
  readonly history: readonly QueryInfo[];
  readonly now: number;
}): ReactNode {
  const { batches, history, now } = props;
  const ofFigures = (index: number): string => `batch ${history[index]?.batch ?? 0}:`;
  const nameOf = (index: number): string => `batch ${batches[index]?.batch ?? 0}, ${formatExactTime(batches[index]?.latest_ack_timestamp ?? -1)}:`;
  const lags = batches.map(watermarkLag);
  const rate = (value: number): string => `${formatCount(Math.round(value))} rows/s`;
  return (
    <Section title={`Query ${props.uid}`}>
      {props.figures !== undefined && <QueryFigures query={props.figures} now={now} />}
      <Charts>
        {history.length > 0 && (
          <Chart label="Input" values={history.map((item) => item["input-rows-per-second"])} format={rate} nameOf={ofFigures} />
        )}
        <Chart label="Processed" values={batches.map(rateOf)} format={rate} nameOf={nameOf} />
        <Chart label="Rows in a batch" values={batches.map((batch) => batch["input-rows"] ?? 0)} format={(value) => formatCount(value)} nameOf={nameOf} />
        {history.some((item) => typeof item.backlog === "number") && (
          <Chart label="Backlog" values={history.map((item) => item.backlog ?? 0)} format={(value) => `${formatCount(value)} rows`} nameOf={ofFigures} />
        )}
        <Chart label="Duration of a batch" values={batches.map((batch) => batch.end_to_end_duration)} format={formatDuration} nameOf={nameOf} />
        <Chart label="Rows in the state" values={batches.map((batch) => batch["state-rows"] ?? 0)} format={(value) => formatCount(value)} nameOf={nameOf} />
        <Chart label="Size of the state" values={batches.map((batch) => batch.state_size)} format={formatBytes} nameOf={nameOf} />
        {lags.some((lag) => lag !== null) && (
          <Chart label="Watermark behind" values={lags.map((lag) => lag ?? 0)} format={formatDuration} nameOf={nameOf} />
        )}
      </Charts>
    </Section>
  );
}
