import { useMutation } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { send } from "../../api/http.ts";
import { useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo, SparkUiLink, TaskManagerDetails } from "../../api/types.ts";
import { formatBytes } from "../../formats/formats.ts";
import { useLive } from "../../live/LiveProvider.tsx";
import { Answer, Problem } from "../../parts/Answer.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Folded } from "../../parts/Folded.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import { ProcessLog, Threads } from "../../parts/ProcessText.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { TaskManagerMetrics } from "./TaskManagerMetrics.tsx";

/** One TaskManager: its slots and the jobs in them, its memory, its metrics, its logs and threads. */
export function TaskManagerPage({ id }: { readonly id: string }): ReactNode {
  const path = `/taskmanagers/${encodeURIComponent(id)}`;
  const { jobs } = useLive();
  const caller = useApi<CallerInfo>("/whoami");
  const query = useApi<TaskManagerDetails>(path);
  return (
    <>
      <h1>{id}</h1>
      <Section title="TaskManager">
        <Answer query={query}>
          {(item) => (
            <Facts
              items={[
                ["Slots", `${item.slotsNumber - item.freeSlots} of ${item.slotsNumber} in use`],
                ["Cores of the machine", item.hardware.cpuCores],
                ["Memory of the machine", formatBytes(item.hardware.physicalMemory)],
                ["Heap of the engine", formatBytes(item.memoryConfiguration.taskHeap)],
                ["Heap in use", formatBytes(item.metrics.heapUsed ?? 0)],
                ["Spark", item.sparkMaster || "–"],
              ]}
            />
          )}
        </Answer>
      </Section>
      <Section title="Slots">
        <Answer query={query}>
          {(item) =>
            item.allocatedSlots.length === 0 ? (
              <Empty>No job has a slot here.</Empty>
            ) : (
              <Table label="Slots" columns={["Job", "Tasks"]}>
                {item.allocatedSlots.map((slot) => (
                  <tr key={slot.jobId}>
                    <td>
                      <JobLink id={slot.jobId} name={jobs.get(slot.jobId)?.name ?? slot.jobId} />
                    </td>
                    <td>{slot.assignedTasks}</td>
                  </tr>
                ))}
              </Table>
            )
          }
        </Answer>
      </Section>
      <TaskManagerMetrics path={path} />
      {hasRole(caller.data, "operator") && (
        <Section title="Process">
          <SparkUi path={`${path}/spark-ui`} />
          <Folded title="Log">{() => <ProcessLog path={`${path}/log`} />}</Folded>
          <Folded title="Log of the Spark engine">{() => <ProcessLog path={`${path}/engine-log`} />}</Folded>
          <Folded title="Threads">{() => <Threads path={`${path}/thread-dump`} />}</Folded>
        </Section>
      )}
    </>
  );
}

/** A button that opens Spark's own UI of the engine in another tab, by a link that the cluster makes for it. */
function SparkUi({ path }: { readonly path: string }): ReactNode {
  const opening = useMutation({
    mutationFn: async () => (await (await send(path, { method: "POST" })).json()) as SparkUiLink,
    networkMode: "always",
    onSuccess: (link) => window.open(link.path, "_blank", "noopener"),
  });
  return (
    <div>
      <button type="button" disabled={opening.isPending} onClick={() => opening.mutate()}>
        Open the UI of Spark
      </button>
      {opening.error !== null && <Problem error={opening.error} />}
    </div>
  );
}
