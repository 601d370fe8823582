import type { ReactNode } from "react";

import { useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import { formatBytes, formatCount, formatDuration } from "../../formats/formats.ts";
import type { CallerInfo, ConfigEntry, Versions } from "../../api/types.ts";
import { Answer } from "../../parts/Answer.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { Folded } from "../../parts/Folded.tsx";
import { type ChartedMetric, MetricCharts } from "../../parts/MetricCharts.tsx";
import { ProcessLog, Threads } from "../../parts/ProcessText.tsx";
import { Section } from "../../parts/Section.tsx";
import { Settings } from "../../parts/Settings.tsx";

const CHARTS: readonly ChartedMetric[] = [
  ["process_resident_memory_bytes", "Memory", formatBytes],
  ["flintlock_event_loop_longest_delay_seconds", "Longest delay of the event loop", (value) => formatDuration(value * 1000)],
  ["numRunningJobs", "Running jobs", (value) => formatCount(value)],
  ["numRegisteredTaskManagers", "TaskManagers", (value) => formatCount(value)],
  ["taskSlotsAvailable", "Free slots", (value) => formatCount(value)],
  ["flintlock_resourcemanager_waiting_requests", "Requests in the queue", (value) => formatCount(value)],
  ["process_open_fds", "Open files and connections", (value) => formatCount(value)],
  ["flintlock_log_lines_dropped", "Dropped lines of the log", (value) => formatCount(value)],
];

/** The JobManager that serves this page. */
export function JobManagerPage(): ReactNode {
  const caller = useApi<CallerInfo>("/whoami");
  const versions = useApi<Versions>("/versions");
  const config = useApi<readonly ConfigEntry[]>("/jobmanager/config");
  return (
    <>
      <h1>JobManager</h1>
      <Section title="The JobManager that serves this page">
        <Answer query={versions}>
          {(data) => (
            <Facts
              items={[
                ["Address", location.host],
                ["Flintlock", data.flintlock ?? "–"],
                ["Python", data.python ?? "–"],
                ["PySpark", data.pyspark ?? "–"],
                ["You are", caller.data === undefined ? "–" : `${caller.data.name}, ${caller.data.role}`],
              ]}
            />
          )}
        </Answer>
      </Section>
      <MetricCharts path="/jobmanager" charts={CHARTS} />
      {hasRole(caller.data, "operator") && (
        <Section title="Process">
          <Folded title="Log">{() => <ProcessLog path="/jobmanager/log" />}</Folded>
          <Folded title="Threads">{() => <Threads path="/jobmanager/thread-dump" />}</Folded>
        </Section>
      )}
      <Section title="Configuration">
        <Answer query={config}>
          {(entries) => <Settings label="Configuration" entries={entries.map(({ key, value }) => [key, value])} />}
        </Answer>
      </Section>
    </>
  );
}
