import type { ReactNode } from "react";

import { ALL_JOBS, writeAddress } from "../address/address.ts";
import { durationOf, hasEnded, type Job, shownState } from "../live/jobs.ts";
import { Labels } from "./Labels.tsx";
import { Progress } from "./Progress.tsx";
import { StateBadge } from "./StateBadge.tsx";
import { type Sorting, Table } from "./Table.tsx";
import { Duration, Time } from "./Time.tsx";

/** A link to a job by its name. */
export function JobLink({ id, name }: { readonly id: string; readonly name: string }): ReactNode {
  return (
    <a href={writeAddress({ page: "job", id, tab: "graph", step: "" })} title={id}>
      {name || id}
    </a>
  );
}

/** A name that jobs were submitted under, with a link to them. */
function JobsOf({ user }: { readonly user: string }): ReactNode {
  return <a href={writeAddress({ page: "jobs", filter: { ...ALL_JOBS, user } })}>{user}</a>;
}

/** Jobs, a line each. `now` is a time of the cluster's clock. */
export function JobRows(props: {
  readonly label: string;
  readonly jobs: readonly Job[];
  readonly now: number;
  /** Whether some of them may have ended. */
  readonly withEnd?: boolean;
  readonly sorting?: Sorting;
}): ReactNode {
  const columns = ["Job", "State", "Steps", "Started", ...(props.withEnd ? ["Ended"] : []), "Duration", "Submitted by", "Labels"];
  return (
    <Table label={props.label} columns={columns} sorting={props.sorting}>
      {props.jobs.map((job) => (
        <tr key={job.jid}>
          <td>
            <JobLink id={job.jid} name={job.name} />
          </td>
          <td>
            <StateBadge state={shownState(job)} /> {!hasEnded(job) && job["waits-for"] && `for ${job["waits-for"]}`}
          </td>
          <td>
            <Progress done={job.tasks.finished} total={job.tasks.total} label={`Steps of ${job.name} that have finished`} />
          </td>
          <td>
            <Time ms={job["start-time"]} now={props.now} />
          </td>
          {props.withEnd && (
            <td>
              <Time ms={job["end-time"]} now={props.now} />
            </td>
          )}
          <td>
            <Duration ms={durationOf(job, props.now)} />
          </td>
          <td>
            <JobsOf user={job["submitted-by"] ?? ""} />
          </td>
          <td>
            <Labels labels={job.labels} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
