import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo, ConfigEntry, TaskManagerDetails } from "../../api/types.ts";
import { elapsed, formatBytes, formatCount, formatDuration } from "../../formats/formats.ts";
import { useClusterTime, useLive } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Folded } from "../../parts/Folded.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import { type ChartedMetric, MetricCharts } from "../../parts/MetricCharts.tsx";
import { ProcessLog, Threads } from "../../parts/ProcessText.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Settings } from "../../parts/Settings.tsx";
import { SparkUi } from "../../parts/SparkUi.tsx";
import { Table } from "../../parts/Table.tsx";

const CHARTS: readonly ChartedMetric[] = [
  ["slots_used", "Slots in use", (value) => formatCount(value)],
  ["running_tasks", "Running tasks", (value) => formatCount(value)],
  ["engine_memory_bytes", "Memory of the engine", formatBytes],
  ["runner_memory_bytes", "Memory of the runners", formatBytes],
  ["engine_restarts", "Restarts of the engine", (value) => formatCount(value)],
  ["log_lines_dropped", "Dropped lines of the log", (value) => formatCount(value)],
];

/** One TaskManager: its slots and the jobs in them, its memory, its metrics, its logs and threads. */
export function TaskManagerPage({ id }: { readonly id: string }): ReactNode {
  const path = `/taskmanagers/${encodeURIComponent(id)}`;
  const { jobs } = useLive();
  const now = useClusterTime();
  const caller = useApi<CallerInfo>("/whoami");
  const query = useApi<TaskManagerDetails>(path, { follow: true });
  return (
    <>
      <h1>{id}</h1>
      <Section title="TaskManager">
        <Answer query={query}>
          {(item) => (
            <Facts
              items={[
                ["Slots", `${item.slotsNumber - item.freeSlots} of ${item.slotsNumber} in use`],
                ["Last heartbeat", `${formatDuration(elapsed(item.timeSinceLastHeartbeat, now))} ago`],
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
      <MetricCharts path={path} charts={CHARTS} follow />
      <Section title="Configuration">
        <Folded title="Settings in effect">{() => <Configuration path={`${path}/config`} />}</Folded>
      </Section>
      {hasRole(caller.data, "operator") && (
        <Section title="Process">
          <SparkUi taskManager={id} label="Open the UI of Spark" />
          <Folded title="Log">{() => <ProcessLog path={`${path}/log`} />}</Folded>
          <Folded title="Log of the Spark engine">{() => <ProcessLog path={`${path}/engine-log`} />}</Folded>
          <Folded title="Threads">{() => <Threads path={`${path}/thread-dump`} />}</Folded>
        </Section>
      )}
    </>
  );
}

function Configuration({ path }: { readonly path: string }): ReactNode {
  const query = useApi<readonly ConfigEntry[]>(path);
  return <Answer query={query}>{(entries) => <Settings label="Configuration" entries={entries.map(({ key, value }) => [key, value])} />}</Answer>;
}
