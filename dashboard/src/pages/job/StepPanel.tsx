import type { ReactNode } from "react";

import { writeAddress } from "../../address/address.ts";
import { formatBytes, formatCount } from "../../formats/formats.ts";
import type { Step } from "../../graph/steps.ts";
import { Facts } from "../../parts/Facts.tsx";
import { Section } from "../../parts/Section.tsx";
import { StateBadge } from "../../parts/StateBadge.tsx";
import { Table } from "../../parts/Table.tsx";
import { Duration, Time } from "../../parts/Time.tsx";
import { Failure } from "./Failure.tsx";
import { phasesOf, rangeOf } from "./phases.ts";
import styles from "./StepPanel.module.css";

/** One step: what it does, what it read and wrote, and the attempts at its region. */
export function StepPanel(props: {
  readonly job: string;
  readonly step: Step;
  readonly now: number;
  readonly onClose: () => void;
}): ReactNode {
  const { step } = props;
  const region = step.attempts;
  const metrics = step.latest?.metrics;
  const output = step.latest?.outputs?.find((item) => item.step === step.name);
  const failure = step.latest?.failure;
  const others = (region?.steps ?? []).filter((name) => name !== step.name);
  const facts: readonly (readonly [string, ReactNode])[] = [
    ["State", <StateBadge key="state" state={step.state} />],
    ["Kind", step.node.kind],
    ["Guarantee", step.node.guarantee],
    ["Uid", step.node.uid],
    ["Schema", step.node.schema && <code key="schema">{step.node.schema}</code>],
    ["Parallelism", step.vertex?.parallelism],
    ["Region", region && (others.length === 0 ? `${region.region}` : `${region.region}, with ${others.join(", ")}`)],
    ["Now", step.latest?.activity],
    ["Stages of the region", progress(metrics?.["stages-done"], metrics?.["stages-total"])],
    ["Tasks of the region", progress(metrics?.["tasks-done"], metrics?.["tasks-total"])],
    ["Read by the region", amount(metrics?.["read-records"], metrics?.["read-bytes"])],
    ["Written by the step", amount(output?.rows, output?.bytes)],
  ];
  return (
    <Section
      title={step.kind === "" ? step.name : `${step.kind}: ${step.name}`}
      aside={
        <button type="button" onClick={props.onClose}>
          Close
        </button>
      }
    >
      <div className={styles["panel"]}>
        <Facts items={facts.filter(([, value]) => value !== undefined && value !== "")} />
        {step.node.definition && (
          <pre className={styles["definition"]} tabIndex={0} aria-label="What the step does">
            {step.node.definition}
          </pre>
        )}
        {failure && <Failure failure={failure} />}
        {region !== undefined && (region.attempts ?? []).length > 0 && <Attempts {...props} />}
      </div>
    </Section>
  );
}

function Attempts({ job, step, now }: { readonly job: string; readonly step: Step; readonly now: number }): ReactNode {
  const region = step.attempts;
  return (
    <Table label="Attempts" columns={["Attempt", "State", "TaskManager", "Started", "Duration", ""]}>
      {(region?.attempts ?? []).toReversed().map((attempt) => {
        const range = rangeOf(phasesOf(attempt, now).filter((phase) => phase.state === "RUNNING"));
        const id = attempt["taskmanager-id"];
        return (
          <tr key={attempt.attempt}>
            <td>{attempt.attempt}</td>
            <td>
              <StateBadge state={attempt.state} />
            </td>
            <td>{id ? <a href={writeAddress({ page: "taskmanager", id })}>{id}</a> : "–"}</td>
            <td>
              <Time ms={range.from || -1} now={now} />
            </td>
            <td>{range.from > 0 ? <Duration ms={range.to - range.from} /> : "–"}</td>
            <td>
              <a href={writeAddress({ page: "job", id: job, tab: "logs", step: `${region?.region ?? 0}/${attempt.attempt}` })}>Log</a>
            </td>
          </tr>
        );
      })}
    </Table>
  );
}

function progress(done = 0, total = 0): string {
  return total === 0 ? "" : `${formatCount(done)} of ${formatCount(total)}`;
}

function amount(rows = 0, bytes = 0): string {
  return rows === 0 && bytes === 0 ? "" : `${formatCount(rows)} rows, ${formatBytes(bytes)}`;
}
