import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import type { JobManagersResponse, JobManagerSummary } from "../../api/types.ts";
import { useClusterTime } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { Section } from "../../parts/Section.tsx";
import { StateBadge } from "../../parts/StateBadge.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";

/** The JobManager that leads, and its standbys. */
export function JobManagersPage(): ReactNode {
  const now = useClusterTime();
  const query = useApi<JobManagersResponse>("/jobmanagers");
  return (
    <>
      <h1>JobManagers</h1>
      <Section title="The leader and its standbys" aside={<a href="#/jobmanager">The one that serves this page</a>}>
        <Answer query={query}>
          {({ jobmanagers = [] }) => (
            <Table label="JobManagers" columns={["Address", "State", "Term", "Machine", "RPC", "Since"]}>
              {jobmanagers.map((item) => (
                <tr key={item.rest}>
                  <td>
                    <a href={addressOf(item)}>{item.rest}</a>
                    {item.rest === location.origin && " (this page)"}
                  </td>
                  <td>
                    <StateBadge state={item.epoch ? "LEADER" : "STANDBY"} />
                  </td>
                  <td>{item.epoch ? item.epoch : "–"}</td>
                  <td>{item.host || "–"}</td>
                  <td>
                    <code>{item.rpc}</code>
                  </td>
                  <td>
                    <Time ms={item.since ?? -1} now={now} />
                  </td>
                </tr>
              ))}
            </Table>
          )}
        </Answer>
      </Section>
      <p>Each JobManager has a page of its own, with its metrics, log, threads and configuration: it is served by that JobManager.</p>
    </>
  );
}

function addressOf({ rest }: JobManagerSummary): string {
  return rest === location.origin ? "#/jobmanager" : `${rest}/#/jobmanager`;
}
