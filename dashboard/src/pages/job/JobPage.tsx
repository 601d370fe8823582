import { type ReactNode, useEffect } from "react";

import { JOB_TABS, type JobTab, writeAddress } from "../../address/address.ts";
import { useApi } from "../../api/queries.ts";
import type { JobAttempts, JobDetails } from "../../api/types.ts";
import { hasEnded, shownState } from "../../live/jobs.ts";
import { useClusterTime } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { CheckpointsTab } from "./CheckpointsTab.tsx";
import { ConfigurationTab } from "./ConfigurationTab.tsx";
import { FailuresTab } from "./FailuresTab.tsx";
import { GraphTab } from "./GraphTab.tsx";
import { JobHead } from "./JobHead.tsx";
import styles from "./JobPage.module.css";
import { LogsTab } from "./LogsTab.tsx";
import { ResultsTab } from "./ResultsTab.tsx";
import { StreamingTab } from "./StreamingTab.tsx";
import { TimelineTab } from "./TimelineTab.tsx";

const TITLES: Readonly<Partial<Record<JobTab, string>>> = { checkpoints: "Checkpoints and savepoints" };

/** Everything about one job. */
export function JobPage(props: { readonly id: string; readonly tab: JobTab; readonly step: string }): ReactNode {
  const { id, tab } = props;
  const now = useClusterTime();
  const details = useApi<JobDetails>(`/jobs/${id}`);
  const running = details.data !== undefined && !hasEnded(details.data) && !details.data["waits-for"];
  const attempts = useApi<JobAttempts>(`/jobs/${id}/attempts`, { follow: running });
  const name = details.data?.name;
  useEffect(() => {
    if (name) document.title = `${name} – Flintlock`;
  }, [name]);
  return (
    <Answer query={details}>
      {(job) => (
        <>
          <JobHead job={job} attempts={attempts.data} now={now} state={shownState(job as Parameters<typeof shownState>[0])} />
          <nav className={styles["tabs"]} aria-label="Parts of the job">
            {JOB_TABS.filter((name) => fits(name, job)).map((name) => (
              <a key={name} href={writeAddress({ page: "job", id, tab: name, step: "" })} aria-current={name === tab ? "page" : undefined}>
                {TITLES[name] ?? name}
              </a>
            ))}
          </nav>
          {tab === "graph" && <GraphTab job={job} attempts={attempts.data} step={props.step} now={now} />}
          {tab === "timeline" && <Answer query={attempts}>{(data) => <TimelineTab attempts={data} now={now} />}</Answer>}
          {tab === "failures" && <Answer query={attempts}>{(data) => <FailuresTab attempts={data} now={now} />}</Answer>}
          {tab === "logs" && <Answer query={attempts}>{(data) => <LogsTab id={id} attempts={data} attempt={props.step} />}</Answer>}
          {tab === "results" && <ResultsTab id={id} />}
          {tab === "streaming" && <StreamingTab id={id} now={now} ended={hasEnded(job)} />}
          {tab === "checkpoints" && <CheckpointsTab id={id} now={now} ended={hasEnded(job)} />}
          {tab === "configuration" && <ConfigurationTab id={id} now={now} />}
        </>
      )}
    </Answer>
  );
}

/** Returns whether a job can have something of a tab: only streaming jobs have batches, and they have no results. */
function fits(tab: JobTab, job: JobDetails): boolean {
  const streaming = job["job-type"] === "STREAMING";
  return streaming ? tab !== "results" : tab !== "streaming" && tab !== "checkpoints";
}
