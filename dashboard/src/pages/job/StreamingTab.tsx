import { type ReactNode, useEffect, useState } from "react";

import { useApi } from "../../api/queries.ts";
import type { CheckpointsResponse, CompletedCheckpoint, QueriesResponse, QueryInfo } from "../../api/types.ts";
import { formatBytes, formatCount, formatDuration, formatExactTime } from "../../formats/formats.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Chart, Charts } from "../../parts/Chart.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Duration, Time } from "../../parts/Time.tsx";
import { QueryFigures } from "./QueryFigures.tsx";
import { SavepointsTable } from "./SavepointsTable.tsx";
import { byQuery, rateOf, watermarkLag, withBatches } from "./batches.ts";

/** How often batches are read: no event reports them. */
const PAUSE_MS = 2000;
const MOST_ROWS = 20;

/** The queries of a streaming job: their rates as charts, each committed batch, which is a checkpoint, and its savepoints. */
export function StreamingTab({ id, now, ended }: { readonly id: string; readonly now: number; readonly ended: boolean }): ReactNode {
  const query = useApi<CheckpointsResponse>(`/jobs/${id}/checkpoints`, { everyMs: !ended && PAUSE_MS });
  const figures = useApi<QueriesResponse>(`/jobs/${id}/queries`, { everyMs: !ended && PAUSE_MS });
  const [batches, setBatches] = useState<readonly CompletedCheckpoint[]>([]);
  useEffect(() => {
    if (query.data !== undefined) setBatches((known) => withBatches(known, query.data));
  }, [query.data]);
  return (
    <Answer query={query}>
      {({ counts, latest }) => (
        <>
          <Section title="Checkpoints">
            <Facts
              items={[
                ["Committed batches", formatCount(counts.completed)],
                ["Restored", formatCount(counts.restored)],
                ["Latest", latest.completed ? <Time key="latest" ms={latest.completed.latest_ack_timestamp} now={now} /> : "none yet"],
                ["Continued from", latest.restored ? <code key="restored">{latest.restored.external_path}</code> : "the beginning"],
              ]}
            />
          </Section>
          <SavepointsTable id={id} now={now} ended={ended} />
          {batches.length === 0 && (
            <Section title="Batches">
              <Empty>No batch was committed yet. The first one appears here as soon as it is.</Empty>
            </Section>
          )}
          {[...byQuery(batches)].map(([uid, items]) => (
            <Query key={uid} uid={uid} batches={items} figures={figures.data?.queries.find((item) => item.uid === uid)} now={now} />
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
  readonly now: number;
}): ReactNode {
  const { batches, now } = props;
  const nameOf = (index: number): string => `batch ${batches[index]?.batch ?? 0}, ${formatExactTime(batches[index]?.latest_ack_timestamp ?? -1)}:`;
  const lags = batches.map(watermarkLag);
  const rate = (value: number): string => `${formatCount(Math.round(value))} rows/s`;
  return (
    <>
      <Section title={`Query ${props.uid}`}>
        {props.figures !== undefined && <QueryFigures query={props.figures} now={now} />}
        <Charts>
          <Chart label="Processed" values={batches.map(rateOf)} format={rate} nameOf={nameOf} />
          <Chart label="Rows in a batch" values={batches.map((batch) => batch["input-rows"] ?? 0)} format={(value) => formatCount(value)} nameOf={nameOf} />
          <Chart label="Duration of a batch" values={batches.map((batch) => batch.end_to_end_duration)} format={formatDuration} nameOf={nameOf} />
          <Chart label="Rows in the state" values={batches.map((batch) => batch["state-rows"] ?? 0)} format={(value) => formatCount(value)} nameOf={nameOf} />
          <Chart label="Memory of the state" values={batches.map((batch) => batch.state_size)} format={formatBytes} nameOf={nameOf} />
          {lags.some((lag) => lag !== null) && (
            <Chart label="Watermark behind" values={lags.map((lag) => lag ?? 0)} format={formatDuration} nameOf={nameOf} />
          )}
        </Charts>
      </Section>
      <Section title={`Latest batches of ${props.uid}`}>
        <Table label={`Batches of ${props.uid}`} columns={["Batch", "Committed", "Duration", "Rows", "State", "Offsets"]}>
          {batches.slice(-MOST_ROWS).toReversed().map((batch) => (
            <tr key={batch.id}>
              <td>{batch.batch}</td>
              <td>
                <Time ms={batch.latest_ack_timestamp} now={now} />
              </td>
              <td>
                <Duration ms={batch.end_to_end_duration} />
              </td>
              <td>{formatCount(batch["input-rows"] ?? 0)}</td>
              <td>
                {formatCount(batch["state-rows"] ?? 0)} rows, {formatBytes(batch.state_size)}
              </td>
              <td>
                <code>{(batch.offsets ?? []).join(" ").slice(0, 300)}</code>
              </td>
            </tr>
          ))}
        </Table>
      </Section>
    </>
  );
}
