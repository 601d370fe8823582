import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import type { ClusterResources } from "../../api/types.ts";
import { elapsed } from "../../formats/formats.ts";
import { useClusterTime, useLive } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { Duration } from "../../parts/Time.tsx";
import { queueOf } from "./queue.ts";

const MOST_SHOWN = 50;

/** The requests that wait for slots, in their order, with what each waits for. */
export function Queue(): ReactNode {
  const { jobs } = useLive();
  const now = useClusterTime();
  const query = useApi<ClusterResources>("/resources");
  const queue = queueOf(query.data?.waiting ?? [], [...jobs.values()]);
  const count = queue.length;
  return (
    <Section title="Waiting for slots" aside={count > MOST_SHOWN && `the first ${MOST_SHOWN} of ${count}`}>
      <Answer query={query}>
        {({ starting = 0 }) => (
          <>
            {starting > 0 && <p>TaskManagers that are starting: {starting}</p>}
            {queue.length === 0 ? (
              <Empty>Nothing waits.</Empty>
            ) : (
              <Table label="Waiting for slots" columns={["", "Job", "Waits for", "Needs", "Priority", "Since"]}>
                {queue.slice(0, MOST_SHOWN).map((item, index) => (
                  <tr key={`${item.jobid} ${item.request ?? ""}`}>
                    <td>{index + 1}</td>
                    <td>
                      <JobLink id={item.jobid} name={item.name ?? ""} />
                    </td>
                    <td>
                      {item["behind-streaming"]
                        ? "slots that streaming jobs use"
                        : jobs.get(item.jobid)?.["waits-for"] || "slots"}
                    </td>
                    <td>{item.known ? needs(item.slots) : "–"}</td>
                    <td>{item.priority ?? 0}</td>
                    <td>
                      <Duration ms={elapsed(item.since ?? now, now)} />
                    </td>
                  </tr>
                ))}
              </Table>
            )}
          </>
        )}
      </Answer>
    </Section>
  );
}

function needs(slots: number | null | undefined): string {
  if (slots === null || slots === undefined) return "all slots of a TaskManager";
  return slots === 1 ? "1 slot" : `${slots} slots`;
}
