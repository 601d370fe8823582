import type { ReactNode } from "react";

import { writeAddress } from "../../address/address.ts";
import { useApi } from "../../api/queries.ts";
import type { JobAttempts } from "../../api/types.ts";
import { firstLine } from "../../formats/formats.ts";
import type { Job } from "../../live/jobs.ts";
import { JobLink } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Time } from "../../parts/Time.tsx";

/** Jobs that failed, with their cause in a line. */
export function LatestFailures({ jobs, now }: { readonly jobs: readonly Job[]; readonly now: number }): ReactNode {
  return (
    <Section title="Latest failures">
      {jobs.length === 0 ? (
        <Empty>No job has failed.</Empty>
      ) : (
        <Table label="Latest failures" columns={["Job", "Failed", "Cause"]}>
          {jobs.map((job) => (
            <tr key={job.jid}>
              <td>
                <JobLink id={job.jid} name={job.name} />
              </td>
              <td>
                <Time ms={job["end-time"]} now={now} />
              </td>
              <td>
                <Cause id={job.jid} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Section>
  );
}

function Cause({ id }: { readonly id: string }): ReactNode {
  const { data } = useApi<JobAttempts>(`/jobs/${id}/attempts`);
  const text = firstLine(data?.failures?.at(-1)?.headline ?? data?.failure?.message ?? "");
  return <a href={writeAddress({ page: "job", id, tab: "failures", step: "" })}>{text || "show the failures"}</a>;
}
