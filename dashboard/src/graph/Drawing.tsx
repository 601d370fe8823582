import { type KeyboardEvent, type ReactNode, useId, useMemo } from "react";

import { toneOf } from "../parts/StateBadge.tsx";
import styles from "./Drawing.module.css";
import { type Box, placeGraph, type Point } from "./layout.ts";
import type { StepEdge } from "./steps.ts";

/** A step as it is drawn. */
export interface DrawnStep {
  readonly id: string;
  readonly name: string;
  readonly region: string;
  /** Colours the step; empty: it has not run. */
  readonly state: string;
  /** The line below the name. */
  readonly subtitle: string;
  readonly detail: string;
  /** Which part of it is done, from 0 to 1; null: not known. */
  readonly progress: number | null;
}

/** Steps in layers, with their regions as frames; a click opens a step. */
export function Drawing(props: {
  readonly steps: readonly DrawnStep[];
  readonly edges: readonly StepEdge[];
  readonly selected: string;
  readonly onOpen: (name: string) => void;
}): ReactNode {
  const { steps, edges } = props;
  const arrow = useId();
  const shape = JSON.stringify([steps.map(({ id, region }) => [id, region]), edges.map(({ from, to }) => [from, to])]);
  // Where steps are does not change with their states, nor with what they have put out.
  const placed = useMemo(() => placeGraph(steps, edges), [shape]);
  const exchanges = new Map(edges.map((edge) => [`${edge.from} ${edge.to}`, edge]));
  const nameOf = new Map(steps.map((step) => [step.id, step.name]));
  return (
    <div className={styles["canvas"]}>
      <svg
        className={styles["drawing"]}
        viewBox={`0 0 ${placed.width} ${placed.height}`}
        width={placed.width}
        height={placed.height}
        role="group"
        aria-label="Steps of the job"
      >
        <defs>
          <marker id={arrow} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M 0 0 L 8 4 L 0 8 z" className={styles["tip"]} />
          </marker>
        </defs>
        {[...placed.frames].map(([region, box]) => (
          <rect key={region} className={styles["frame"]} {...box} rx={12} />
        ))}
        {placed.edges.map((edge, index) => {
          const { blocking = false, amount = "" } = exchanges.get(`${edge.from} ${edge.to}`) ?? {};
          const place = labelPlace(edge.points);
          return (
            <g key={index}>
              <path className={blocking ? styles["blocking"] : styles["edge"]} d={curve(edge.points)} markerEnd={`url(#${arrow})`}>
                <title>
                  {[`${nameOf.get(edge.from) ?? ""} to ${nameOf.get(edge.to) ?? ""}`, blocking ? "blocking" : "pipelined", amount]
                    .filter((text) => text !== "")
                    .join(", ")}
                </title>
              </path>
              {amount !== "" && place !== null && (
                <text className={styles["amount"]} textAnchor="middle">
                  {amount.split(", ").map((part, line) => (
                    <tspan key={line} x={place.x} y={place.y - 6 + line * 18}>
                      {part}
                    </tspan>
                  ))}
                </text>
              )}
            </g>
          );
        })}
        {steps.map((step) => {
          const box = placed.nodes.get(step.id);
          const selected = step.name === props.selected;
          return box && <Node key={step.id} step={step} box={box} selected={selected} onOpen={() => props.onOpen(step.name)} />;
        })}
      </svg>
    </div>
  );
}

function Node(props: {
  readonly step: DrawnStep;
  readonly box: Box;
  readonly selected: boolean;
  readonly onOpen: () => void;
}): ReactNode {
  const { step, box } = props;
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
      <title>{[step.name, step.subtitle, step.detail].join(" ").trim()}</title>
      <rect className={styles["box"]} width={box.width} height={box.height} rx={8} />
      <rect className={styles["bar"]} x={0} y={10} width={4} height={box.height - 20} rx={2} />
      <text x={16} y={24} className={styles["name"]}>
        {shortened(step.name, 22)}
      </text>
      <text x={16} y={44} className={styles["state"]}>
        {shortened(step.subtitle, 28)}
      </text>
      <text x={16} y={62} className={styles["detail"]}>
        {shortened(step.detail, 30)}
      </text>
      {step.progress !== null && (
        <>
          <rect className={styles["track"]} x={16} y={box.height - 8} width={box.width - 32} height={3} rx={1.5} />
          <rect className={styles["done"]} x={16} y={box.height - 8} width={(box.width - 32) * step.progress} height={3} rx={1.5} />
        </>
      )}
    </g>
  );
}

/** Returns where the amount of an exchange is written: in the middle of its first part, which no step covers. */
function labelPlace(points: readonly Point[]): Point | null {
  const [begin, end] = points;
  return begin === undefined || end === undefined ? null : { x: (begin.x + end.x) / 2, y: (begin.y + end.y) / 2 };
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
