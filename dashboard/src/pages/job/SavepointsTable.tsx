import { type ReactNode, useState } from "react";

import { get, send } from "../../api/http.ts";
import { refresh, useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo, JobChange, JobChanges, OperationResponse, TriggerResponse } from "../../api/types.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { ConfirmButton } from "../../parts/ConfirmButton.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";
import { progressOfChange, savepointsOf } from "./savepoints.ts";

/** Between two looks at what came of a removal. */
const PAUSE_MS = 500;

/** The savepoints that were requested of a job, here or elsewhere, as far as the cluster remembers them. */
export function SavepointsTable({ id, now, ended }: { readonly id: string; readonly now: number; readonly ended: boolean }): ReactNode {
  const query = useApi<JobChanges>(`/jobs/${id}/changes`, { follow: !ended });
  const caller = useApi<CallerInfo>("/whoami");
  const [removed, setRemoved] = useState<ReadonlySet<string>>(new Set());
  const mayRemove = hasRole(caller.data, "operator");
  const remove = async (location: string, requestId: string): Promise<void> => {
    await dispose(location, requestId);
    setRemoved((known) => new Set([...known, location]));
    refresh(new Set([id]));
  };
  return (
    <Section title="Savepoints">
      <Answer query={query}>
        {({ changes = [] }) => {
          const savepoints = savepointsOf(changes);
          if (savepoints.length === 0) return <Empty>No savepoint was requested of this job.</Empty>;
          return (
            <Table label="Savepoints" columns={["Requested", "By", "How", "Savepoint", ...(mayRemove ? [""] : [])]}>
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
                  {mayRemove && (
                    <td>
                      {change.location && (removed.has(change.location) ? "removed" : <RemoveButton location={change.location} onRemove={remove} />)}
                    </td>
                  )}
                </tr>
              ))}
            </Table>
          );
        }}
      </Answer>
    </Section>
  );
}

function RemoveButton(props: {
  readonly location: string;
  readonly onRemove: (location: string, requestId: string) => Promise<void>;
}): ReactNode {
  return (
    <ConfirmButton
      label="Remove"
      question="Remove this savepoint?"
      consequence={`The files in ${props.location} are removed. No job can begin from this savepoint afterwards; jobs that have begun from it go on.`}
      action={(requestId) => props.onRemove(props.location, requestId)}
    />
  );
}

/** Removes a savepoint. Throws where it could not be removed, with the reason. */
async function dispose(location: string, requestId: string): Promise<void> {
  const body = JSON.stringify({ "savepoint-path": location, triggerId: requestId });
  const response = await send("/savepoint-disposal", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const { "request-id": trigger } = (await response.json()) as TriggerResponse;
  let outcome = await get<OperationResponse>(`/savepoint-disposal/${trigger}`);
  while (outcome.status.id === "IN_PROGRESS") {
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    outcome = await get<OperationResponse>(`/savepoint-disposal/${trigger}`);
  }
  const cause = outcome.operation?.["failure-cause"];
  if (cause) throw new Error(cause["stack-trace"]);
}

function Outcome({ change }: { readonly change: JobChange }): ReactNode {
  const progress = progressOfChange(change);
  if (progress.state === "made") return <Command text={progress.location} />;
  return progress.state === "failed" ? `not made: ${progress.reason}` : "being made";
}
