import { type ReactNode, useSyncExternalStore } from "react";

import { ALL_JOBS, writeAddress } from "../../address/address.ts";
import { leaderTerm } from "../../api/http.ts";
import { useApi } from "../../api/queries.ts";
import type { ClusterOverview, JobManagersResponse, QuarantineListing } from "../../api/types.ts";
import { hasEnded, type Job, shownState } from "../../live/jobs.ts";
import { useClusterTime, useLive } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { JobRows } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { LatestFailures } from "./LatestFailures.tsx";
import { Activity } from "./Activity.tsx";
import styles from "./OverviewPage.module.css";
import { Queue } from "./Queue.tsx";

const MOST_RUNNING = 50;

/** The cluster at a glance: what runs, what waits, what failed. */
export function OverviewPage(): ReactNode {
  const live = useLive();
  const now = useClusterTime();
  const overview = useApi<ClusterOverview>("/overview");
  const jobs = [...live.jobs.values()];
  const active = jobs.filter((job) => !hasEnded(job) && shownState(job) !== "WAITING");
  const running = active.sort((one, other) => other["start-time"] - one["start-time"]);
  const failed = jobs.filter((job) => job.state === "FAILED").sort((one, other) => other["end-time"] - one["end-time"]);
  const known = live.connection !== "connecting";
  return (
    <>
      <h1>Overview</h1>
      <Answer query={overview}>{(data) => <Counts overview={data} jobs={jobs} />}</Answer>
      {known && jobs.length === 0 && <FirstSteps />}
      {jobs.length > 0 && <Activity jobs={jobs} now={now} />}
      <Section title="Running" aside={running.length > MOST_RUNNING && `the latest ${MOST_RUNNING} of ${running.length}`}>
        {running.length === 0 ? (
          <Empty>{known ? "No job runs." : "Reading …"}</Empty>
        ) : (
          <JobRows label="Running jobs" jobs={running.slice(0, MOST_RUNNING)} now={now} />
        )}
      </Section>
      <Queue />
      <LatestFailures jobs={failed.slice(0, 5)} now={now} />
    </>
  );
}

function Counts({ overview, jobs }: { readonly overview: ClusterOverview; readonly jobs: readonly Job[] }): ReactNode {
  const waiting = jobs.filter((job) => !hasEnded(job) && shownState(job) === "WAITING").length;
  const running = jobs.filter((job) => !hasEnded(job)).length - waiting;
  const term = useSyncExternalStore(leaderTerm.subscribe, leaderTerm.get);
  const used = overview["slots-total"] - overview["slots-available"];
  const members = useApi<JobManagersResponse>("/jobmanagers").data?.jobmanagers;
  const quarantined = useApi<QuarantineListing>("/quarantine").data?.jobs.length ?? 0;
  const items: readonly (readonly [string, string | number, string, string?])[] = [
    ["Term of the leader", term ?? "–", "#/jobmanagers"],
    ["Standbys", members === undefined ? "–" : Math.max(0, members.length - 1), "#/jobmanagers"],
    ["TaskManagers", overview.taskmanagers, "#/taskmanagers"],
    ["Slots in use", `${used} of ${overview["slots-total"]}`, "#/taskmanagers"],
    ["Running", running, jobsIn("RUNNING"), running > 0 ? "busy" : ""],
    ["Waiting", waiting, jobsIn("WAITING"), waiting > 0 ? "wait" : ""],
    ["Finished", overview["jobs-finished"], jobsIn("FINISHED")],
    ["Failed", overview["jobs-failed"], jobsIn("FAILED"), overview["jobs-failed"] > 0 ? "bad" : ""],
    ["Cancelled", overview["jobs-cancelled"], jobsIn("CANCELED")],
    ...(quarantined > 0 ? [["Quarantined", quarantined, "#/quarantine", "bad"] as const] : []),
  ];
  return (
    <ul className={styles["counts"]}>
      {items.map(([name, value, href, tone = ""]) => (
        <li key={name}>
          <a href={href}>
            <span className={`${styles["value"]} ${styles[tone] ?? ""}`}>{value}</span> <span className={styles["name"]}>{name}</span>
          </a>
        </li>
      ))}
    </ul>
  );
}

function FirstSteps(): ReactNode {
  return (
    <Section title="This cluster has no job yet">
      <Empty>
        <p>Write a small job, and run it:</p>
        <Command text="flintlock init words.py" />
        <Command text="flintlock run words.py:job" />
      </Empty>
    </Section>
  );
}

function jobsIn(state: string): string {
  return writeAddress({ page: "jobs", filter: { ...ALL_JOBS, states: [state] } });
}
