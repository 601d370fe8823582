import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import type { JobChanges, JobConfigResponse } from "../../api/types.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Settings } from "../../parts/Settings.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";

/** How a job was configured, and who has changed it since. */
export function ConfigurationTab({ id, now }: { readonly id: string; readonly now: number }): ReactNode {
  const config = useApi<JobConfigResponse>(`/jobs/${id}/config`);
  const changes = useApi<JobChanges>(`/jobs/${id}/changes`);
  return (
    <>
      <Section title="Execution">
        <Answer query={config}>
          {({ "execution-config": execution }) => (
            <>
              <Facts
                items={[
                  ["Restart strategy", execution["restart-strategy"]],
                  ["Parallelism", execution["job-parallelism"]],
                ]}
              />
              <Settings label="Settings of the job" entries={Object.entries(execution["user-config"])} />
            </>
          )}
        </Answer>
      </Section>
      <Section title="Changes">
        <Answer query={changes}>
          {({ changes: made = [] }) =>
            made.length === 0 ? (
              <Empty>Nothing was requested of this job since it was submitted.</Empty>
            ) : (
              <Table label="Changes" columns={["What", "When", "By", "Outcome"]}>
                {made.map((change, index) => (
                  <tr key={index}>
                    <td>{change.kind}</td>
                    <td>
                      <Time ms={change.requested} now={now} />
                    </td>
                    <td>{change["requested-by"]}</td>
                    <td>{change.failure || change.location || change.status}</td>
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
