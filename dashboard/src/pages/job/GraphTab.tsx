import { type KeyboardEvent, type ReactNode, useMemo } from "react";

import { goTo } from "../../address/useAddress.ts";
import type { JobAttempts, JobDetails } from "../../api/types.ts";
import { formatBytes, formatCount } from "../../formats/formats.ts";
import { type Box, placeGraph, type Point } from "../../graph/layout.ts";
import { edgesOf, type Step, type StepEdge, stepsOf } from "../../graph/steps.ts";
import { Empty, Section } from "../../parts/Section.tsx";
import { toneOf } from "../../parts/StateBadge.tsx";
import styles from "./GraphTab.module.css";
import { StepPanel } from "./StepPanel.tsx";

/** The steps of a job, with their regions as frames; a click opens a step. */
export function GraphTab(props: {
  readonly job: JobDetails;
  readonly attempts: JobAttempts | undefined;
  readonly step: string;
}): ReactNode {
  const { job } = props;
  const steps = stepsOf(job, props.attempts);
  const edges = edgesOf(job);
  const shape = JSON.stringify([steps.map(({ id, region }) => ({ id, region })), edges]);
  // Where steps are does not change with their states.
  const placed = useMemo(() => placeGraph(steps, edges), [shape]);
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
      <Section title="Graph" aside={<span className={styles["legend"]}>dashed: a blocking exchange</span>}>
        <div className={styles["canvas"]}>
          <svg width={placed.width} height={placed.height} role="group" aria-label="Steps of the job">
            {[...placed.frames].map(([region, box]) => (
              <rect key={region} className={styles["frame"]} {...box} rx={10} />
            ))}
            {placed.edges.map((edge) => (
              <path
                key={`${edge.from} ${edge.to}`}
                className={(edge as typeof edge & StepEdge).blocking ? styles["blocking"] : styles["edge"]}
                d={curve(edge.points)}
              />
            ))}
            {steps.map((step) => {
              const box = placed.nodes.get(step.id);
              return box && <Node key={step.id} step={step} box={box} selected={step === opened} onOpen={() => open(step.name)} />;
            })}
          </svg>
        </div>
      </Section>
      {opened !== undefined && <StepPanel job={job.jid} step={opened} onClose={() => open("")} />}
    </>
  );
}

function Node(props: {
  readonly step: Step;
  readonly box: Box;
  readonly selected: boolean;
  readonly onOpen: () => void;
}): ReactNode {
  const { step, box } = props;
  const lines = [
    shortened(step.name, 24),
    [step.kind, step.state].filter((text) => text !== "").join(" · "),
    shortened(detailOf(step), 32),
  ];
  const onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    props.onOpen();
  };
  return (
    <g
      role="button"
      tabIndex={0}
      aria-pressed={props.selected}
      className={`${styles["node"]} ${styles[toneOf(step.state)]} ${props.selected ? styles["selected"] : ""}`}
      transform={`translate(${box.x} ${box.y})`}
      onClick={props.onOpen}
      onKeyDown={onKey}
    >
      <title>{[step.name, lines[1], detailOf(step)].join(" ").trim()}</title>
      <rect width={box.width} height={box.height} rx={6} />
      <text x={12} y={22} className={styles["name"]}>
        {lines[0]}
      </text>
      <text x={12} y={42} className={styles["state"]}>
        {lines[1]}
      </text>
      <text x={12} y={60} className={styles["detail"]}>
        {lines[2]}
      </text>
    </g>
  );
}

/** Returns what a step has done: its rows, or the progress of Spark's tasks of its region. */
function detailOf(step: Step): string {
  const output = step.latest?.outputs?.find((item) => item.step === step.name);
  if (output !== undefined) return `${formatCount(output.rows ?? 0)} rows, ${formatBytes(output.bytes ?? 0)}`;
  const metrics = step.latest?.metrics;
  if (step.state === "RUNNING" && metrics?.["tasks-total"])
    return `${formatCount(metrics["tasks-done"] ?? 0)}/${formatCount(metrics["tasks-total"])} tasks`;
  return step.vertex === undefined ? "" : `parallelism ${step.vertex.parallelism}`;
}

function shortened(text: string, limit: number): string {
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

/** Returns a smooth line through points, which go from left to right. */
function curve(points: readonly Point[]): string {
  const [first, ...rest] = points;
  if (first === undefined) return "";
  let path = `M ${first.x} ${first.y}`;
  let last = first;
  for (const point of rest) {
    const middle = (last.x + point.x) / 2;
    path += ` C ${middle} ${last.y}, ${middle} ${point.y}, ${point.x} ${point.y}`;
    last = point;
  }
  return path;
}
