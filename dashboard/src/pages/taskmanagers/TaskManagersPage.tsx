import type { ReactNode } from "react";

import { writeAddress } from "../../address/address.ts";
import { useApi } from "../../api/queries.ts";
import type { TaskManagersResponse } from "../../api/types.ts";
import { elapsed, formatBytes, formatDuration } from "../../formats/formats.ts";
import { useClusterTime } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { Progress } from "../../parts/Progress.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";

/** The TaskManagers that are registered. */
export function TaskManagersPage(): ReactNode {
  const now = useClusterTime();
  const query = useApi<TaskManagersResponse>("/taskmanagers", { follow: true });
  return (
    <>
      <h1>TaskManagers</h1>
      <Section title="Registered">
        <Answer query={query}>
          {({ taskmanagers }) =>
            taskmanagers.length === 0 ? (
              <Empty>
                <p>No TaskManager is registered, so jobs wait. To start one for this cluster on its machine:</p>
                <Command text="flintlock taskmanager" />
              </Empty>
            ) : (
              <Table label="TaskManagers" columns={["Id", "Slots in use", "Cores", "Memory", "Last heartbeat", "Spark"]}>
                {taskmanagers.map((item) => (
                  <tr key={item.id}>
                    <td>
                      <a href={writeAddress({ page: "taskmanager", id: item.id })}>{item.id}</a>
                    </td>
                    <td>
                      <Progress done={item.slotsNumber - item.freeSlots} total={item.slotsNumber} label={`Slots of ${item.id} in use`} />
                    </td>
                    <td>{item.hardware.cpuCores}</td>
                    <td>{formatBytes(item.hardware.physicalMemory)}</td>
                    <td>{formatDuration(elapsed(item.timeSinceLastHeartbeat, now))} ago</td>
                    <td>{item.sparkMaster ?? ""}</td>
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
