import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import type { JobChange, JobChanges } from "../../api/types.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";
import { progressOfChange, savepointsOf } from "./savepoints.ts";

/** How often the savepoints are read while the job runs: no event reports those that are requested elsewhere. */
const PAUSE_MS = 5000;

/** The savepoints that were requested of a job, here or elsewhere, as far as the cluster remembers them. */
export function SavepointsTable({ id, now, ended }: { readonly id: string; readonly now: number; readonly ended: boolean }): ReactNode {
  const query = useApi<JobChanges>(`/jobs/${id}/changes`, { everyMs: !ended && PAUSE_MS });
  return (
    <Section title="Savepoints">
      <Answer query={query}>
        {({ changes = [] }) => {
          const savepoints = savepointsOf(changes);
          if (savepoints.length === 0) return <Empty>No savepoint was requested of this job.</Empty>;
          return (
            <Table label="Savepoints" columns={["Requested", "By", "How", "Savepoint"]}>
              {savepoints.map((change, index) => (
                <tr key={index}>
                  <td>
                    <Time ms={change.requested} now={now} />
                  </td>
                  <td>{change["requested-by"] || "–"}</td>
                  <td>{change.kind === "stop" ? "to stop the job" : "while the job ran"}</td>
                  <td>
                    <Outcome change={change} />
                  </td>
                </tr>
              ))}
            </Table>
          );
        }}
      </Answer>
    </Section>
  );
}

function Outcome({ change }: { readonly change: JobChange }): ReactNode {
  const progress = progressOfChange(change);
  if (progress.state === "made") return <Command text={progress.location} />;
  return progress.state === "failed" ? `not made: ${progress.reason}` : "being made";
}
