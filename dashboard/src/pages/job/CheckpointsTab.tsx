import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import type { CheckpointsResponse, CompletedCheckpoint } from "../../api/types.ts";
import { formatBytes, formatCount } from "../../formats/formats.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Duration, Time } from "../../parts/Time.tsx";
import { SavepointsTable } from "./SavepointsTable.tsx";
import { byQuery, withBatches } from "./batches.ts";

const MOST_ROWS = 20;

/** The checkpoints of a streaming job, which are the committed batches of its queries, and its savepoints. */
export function CheckpointsTab({ id, now, ended }: { readonly id: string; readonly now: number; readonly ended: boolean }): ReactNode {
  const query = useApi<CheckpointsResponse>(`/jobs/${id}/checkpoints`, { follow: !ended });
  return (
    <Answer query={query}>
      {(response) => (
        <>
          <Section title="Checkpoints">
            <Summary response={response} now={now} />
          </Section>
          <SavepointsTable id={id} now={now} ended={ended} />
          {[...byQuery(withBatches([], response))].map(([uid, batches]) => (
            <Batches key={uid} uid={uid} batches={batches} now={now} />
          ))}
        </>
      )}
    </Answer>
  );
}

function Summary({ response: { counts, latest }, now }: { readonly response: CheckpointsResponse; readonly now: number }): ReactNode {
  return (
    <Facts
      items={[
        ["Committed batches", formatCount(counts.completed)],
        ["Restored", formatCount(counts.restored)],
        ["Latest", latest.completed ? <Time key="latest" ms={latest.completed.latest_ack_timestamp} now={now} /> : "none yet"],
        ["Continued from", latest.restored ? <code key="restored">{latest.restored.external_path}</code> : "the beginning"],
      ]}
    />
  );
}

function Batches(props: { readonly uid: string; readonly batches: readonly CompletedCheckpoint[]; readonly now: number }): ReactNode {
  const { batches, now } = props;
  return (
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
  );
}
