import type { ReactNode } from "react";

import { send } from "../../api/http.ts";
import { queryClient, refresh, useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo, QuarantineEntry, QuarantineListing } from "../../api/types.ts";
import { useClusterTime } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { ConfirmButton } from "../../parts/ConfirmButton.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";

/** Jobs that the cluster does not run because their records cannot be read, or because they have blocked leaders. */
export function QuarantinePage(): ReactNode {
  const now = useClusterTime();
  const caller = useApi<CallerInfo>("/whoami");
  const query = useApi<QuarantineListing>("/quarantine");
  const mayAct = hasRole(caller.data, "operator");
  return (
    <>
      <h1>Quarantined jobs</h1>
      <Section title="Kept, and not run">
        <Answer query={query}>
          {({ jobs }) =>
            jobs.length === 0 ? (
              <Empty>No job is quarantined: the cluster can read and run all of them.</Empty>
            ) : (
              <Table label="Quarantined jobs" columns={["Job", "Since", "Reason", ...(mayAct ? [""] : [])]}>
                {jobs.map((job) => (
                  <tr key={job.jid}>
                    <td>
                      <JobLink id={job.jid} name={job.name || job.jid} />
                    </td>
                    <td>
                      <Time ms={job.since} now={now} />
                    </td>
                    <td>{job.reason}</td>
                    {mayAct && (
                      <td>
                        <Actions job={job} />
                      </td>
                    )}
                  </tr>
                ))}
              </Table>
            )
          }
        </Answer>
      </Section>
    </>
  );
}

function Actions({ job }: { readonly job: QuarantineEntry }): ReactNode {
  const name = job.name || job.jid;
  return (
    <>
      {job.readable && (
        <ConfirmButton
          label="Put back"
          question={`Put ${name} back?`}
          consequence="The job runs again under its own id, from the progress that is stored. If the reason still holds, it is quarantined again."
          action={() => act(job.jid, "POST", "/retry")}
        />
      )}
      <ConfirmButton
        label="Drop"
        question={`Drop ${name} for good?`}
        consequence="The job fails and cannot be put back. Its records, its files and its artifacts are removed."
        action={() => act(job.jid, "DELETE", "")}
      />
    </>
  );
}

async function act(id: string, method: string, path: string): Promise<void> {
  await send(`/quarantine/${id}${path}`, { method });
  refresh(new Set([id]));
  void queryClient.invalidateQueries({ queryKey: ["/quarantine"] }); // no event reports it: it happens when a leader begins
}
