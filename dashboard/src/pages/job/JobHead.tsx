import type { ReactNode } from "react";

import { send } from "../../api/http.ts";
import { refresh, useApi } from "../../api/queries.ts";
import { hasRole, mayChangeJob } from "../../api/roles.ts";
import type { CallerInfo, DashboardConfig, JobAttempts, JobDetails } from "../../api/types.ts";
import { durationOf, hasEnded } from "../../live/jobs.ts";
import { ConfirmButton } from "../../parts/ConfirmButton.tsx";
import { Facts } from "../../parts/Facts.tsx";
import { JobLink } from "../../parts/JobRows.tsx";
import { Labels } from "../../parts/Labels.tsx";
import { SparkUi } from "../../parts/SparkUi.tsx";
import { StateBadge } from "../../parts/StateBadge.tsx";
import { Duration, Time } from "../../parts/Time.tsx";
import styles from "./JobHead.module.css";
import { enginesOf } from "./engines.ts";
import { ContinueButton, RerunButton } from "./RerunButton.tsx";
import { RescaleButton } from "./RescaleButton.tsx";
import { SavepointOutcome, useSavepoint } from "./SavepointOutcome.tsx";
import { ENDING, type SavepointKind, takesSavepoints } from "./savepoints.ts";

/** What a job is, how it goes, and what the reader may do with it. */
export function JobHead(props: {
  readonly job: JobDetails;
  readonly attempts: JobAttempts | undefined;
  readonly state: string;
  readonly now: number;
}): ReactNode {
  const { job, now } = props;
  const caller = useApi<CallerInfo>("/whoami");
  const savepoint = useSavepoint(job.jid);
  const rerunOf = job["rerun-of"];
  const upgradeOf = job["upgrade-of"];
  const engines = hasRole(caller.data, "operator") ? enginesOf(props.attempts) : [];
  return (
    <header className={styles["head"]}>
      <div className={styles["title"]}>
        <h1>{job.name}</h1>
        <StateBadge state={props.state} />
        {!hasEnded(job) && job["waits-for"] && <span>waits for {job["waits-for"]}</span>}
        {mayChangeJob(caller.data, job["submitted-by"] ?? "") && (
          <Actions job={job} continuable={props.attempts?.continuable === true} stopping={savepoint.stopping} onSavepoint={savepoint.request} />
        )}
      </div>
      {engines.map((id) => (
        <SparkUi key={id} taskManager={id} label={engines.length === 1 ? "Open the UI of Spark" : `Open the UI of Spark of ${id}`} />
      ))}
      <SavepointOutcome savepoint={savepoint} />
      <Facts
        items={[
          ["Id", <code key="id">{job.jid}</code>],
          ["Started", <Time key="start" ms={job["start-time"]} now={now} />],
          ["Ended", <Time key="end" ms={job["end-time"]} now={now} />],
          ["Duration", <Duration key="duration" ms={durationOf(job, now)} />],
          ["Submitted by", job["submitted-by"] || "unknown"],
          ...(job.labels && Object.keys(job.labels).length > 0
            ? [["Labels", <Labels key="labels" labels={job.labels} />] as const]
            : []),
          ...(rerunOf ? [["Runs again", <JobLink key="rerun" id={rerunOf} name={rerunOf.slice(0, 8)} />] as const] : []),
          ...(upgradeOf ? [["Has taken the place of", <JobLink key="upgrade" id={upgradeOf} name={upgradeOf.slice(0, 8)} />] as const] : []),
        ]}
      />
    </header>
  );
}

function Actions(props: {
  readonly job: JobDetails;
  /** Whether it can be run again from where it failed. */
  readonly continuable: boolean;
  /** Whether the job is being stopped, as this page has requested. */
  readonly stopping: boolean;
  readonly onSavepoint: (kind: SavepointKind, requestId: string) => Promise<void>;
}): ReactNode {
  const { job } = props;
  const config = useApi<DashboardConfig>("/config");
  if (hasEnded(job))
    return (
      <>
        {props.continuable && <ContinueButton job={job} />}
        <RerunButton job={job} />
      </>
    );
  const maySave = takesSavepoints(job) && !props.stopping;
  const mayEnd = config.data?.features["web-cancel"] === true;
  return (
    <>
      {maySave && (
        <ConfirmButton
          label="Take a savepoint"
          question={`Take a savepoint of ${job.name}?`}
          consequence="The position and the state of each of its queries, as of the latest committed batch, are saved in the cluster's directory for savepoints (state.savepoints.dir). The job continues. The savepoint stays until it is removed; new jobs can begin from it."
          action={(requestId) => props.onSavepoint("savepoint", requestId)}
        />
      )}
      {maySave && mayEnd && (
        <ConfirmButton
          label="Stop with a savepoint"
          question={`Stop ${job.name} with a savepoint?`}
          consequence="Each of its queries completes the batch that it has begun, and begins no other. Then a savepoint is made in the cluster's directory for savepoints (state.savepoints.dir), and the job is FINISHED. A stopped job cannot be resumed; a new job can begin from the savepoint."
          action={(requestId) => props.onSavepoint("stop", requestId)}
        />
      )}
      {config.data?.features["web-rescale"] === true && !ENDING.includes(job.state) && <RescaleButton job={job} />}
      {mayEnd && <CancelButton job={job} />}
    </>
  );
}

function CancelButton({ job }: { readonly job: JobDetails }): ReactNode {
  if (job.state === "CANCELLING")
    return (
      <ConfirmButton
        label="Cancel by force"
        question={`End ${job.name} without waiting for its attempts?`}
        consequence="Publications that have begun, and attempts that no TaskManager can end, are given up. What they leave behind is listed with the job's failures."
        action={() => cancel(job.jid, true)}
      />
    );
  return (
    <ConfirmButton
      label="Cancel"
      question={`Cancel ${job.name}?`}
      consequence="Its running attempts are ended, and what they have computed and not published is discarded. A cancelled job cannot be resumed; it can be run again."
      action={() => cancel(job.jid, false)}
    />
  );
}

async function cancel(id: string, force: boolean): Promise<void> {
  await send(`/jobs/${id}${force ? "?force=true" : ""}`, { method: "PATCH" });
  refresh(new Set([id]));
}
