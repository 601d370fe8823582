import type { ReactNode } from "react";

import { goTo } from "../../address/useAddress.ts";
import type { JobAttempts, JobDetails } from "../../api/types.ts";
import { formatCount } from "../../formats/formats.ts";
import { type DrawnStep, Drawing } from "../../graph/Drawing.tsx";
import { amountOf, edgesOf, type Step, stepsOf } from "../../graph/steps.ts";
import { Empty, Section } from "../../parts/Section.tsx";
import styles from "./GraphTab.module.css";
import { StepPanel } from "./StepPanel.tsx";

/** The steps of a job, with their regions as frames; a click opens a step. */
export function GraphTab(props: {
  readonly job: JobDetails;
  readonly attempts: JobAttempts | undefined;
  readonly step: string;
  readonly now: number;
}): ReactNode {
  const { job } = props;
  const steps = stepsOf(job, props.attempts);
  const opened = steps.find((step) => step.name === props.step);
  const open = (name: string): void => goTo({ page: "job", id: job.jid, tab: "graph", step: name }, true);
  if (steps.length === 0)
    return (
      <Section title="Graph">
        <Empty>This job has no steps.</Empty>
      </Section>
    );
  return (
    <>
      <Section title="Graph" aside={<span className={styles["legend"]}>a frame: one region · dashed: a blocking exchange</span>}>
        <Drawing steps={steps.map(drawn)} edges={edgesOf(job, steps)} selected={props.step} onOpen={open} />
      </Section>
      {opened !== undefined && <StepPanel job={job.jid} step={opened} now={props.now} onClose={() => open("")} />}
    </>
  );
}

function drawn(step: Step): DrawnStep {
  const metrics = step.latest?.metrics;
  const total = metrics?.["tasks-total"] ?? 0;
  const running = step.state === "RUNNING" && total > 0;
  return {
    id: step.id,
    name: step.name,
    region: step.region,
    state: step.state,
    subtitle: [step.kind, step.state].filter((text) => text !== "").join(" · "),
    detail: detailOf(step),
    progress: running ? (metrics?.["tasks-done"] ?? 0) / total : null,
  };
}

/** Returns what a step has done: its rows, or the progress of Spark's tasks of its region. */
function detailOf(step: Step): string {
  const amount = amountOf(step);
  if (amount !== "") return amount;
  const metrics = step.latest?.metrics;
  if (step.state === "RUNNING" && metrics?.["tasks-total"]) {
    const stages = metrics["stages-total"] ? `stage ${formatCount(metrics["stages-done"] ?? 0)}/${formatCount(metrics["stages-total"])}, ` : "";
    return `${stages}${formatCount(metrics["tasks-done"] ?? 0)}/${formatCount(metrics["tasks-total"])} tasks`;
  }
  return step.node.kind ?? "";
}
