import type { ReactNode } from "react";

import { writeAddress } from "../../address/address.ts";
import { formatBytes, formatCount } from "../../formats/formats.ts";
import type { Step } from "../../graph/steps.ts";
import { Facts } from "../../parts/Facts.tsx";
import { Section } from "../../parts/Section.tsx";
import { StateBadge } from "../../parts/StateBadge.tsx";
import { Failure } from "./Failure.tsx";

/** One step: its state, what it read and wrote, and the attempts at its region. */
export function StepPanel(props: { readonly job: string; readonly step: Step; readonly onClose: () => void }): ReactNode {
  const { step } = props;
  const region = step.attempts;
  const metrics = step.latest?.metrics;
  const output = step.latest?.outputs?.find((item) => item.step === step.name);
  const failure = step.latest?.failure;
  return (
    <Section
      title={step.kind === "" ? step.name : `${step.kind}: ${step.name}`}
      aside={
        <button type="button" onClick={props.onClose}>
          Close
        </button>
      }
    >
      <Facts
        items={[
          ["State", <StateBadge key="state" state={step.state} />],
          ["Parallelism", step.vertex?.parallelism ?? "–"],
          ["Region", region === undefined ? "–" : `${region.region}, with ${(region.steps ?? []).join(", ")}`],
          ["Attempts", region === undefined ? "–" : (region.attempts?.length ?? 0) + (region.omitted ?? 0)],
          ["TaskManager", step.latest?.["taskmanager-id"] ?? "–"],
          ["Now", step.latest?.activity || "–"],
          ["Stages of the region", progress(metrics?.["stages-done"], metrics?.["stages-total"])],
          ["Tasks of the region", progress(metrics?.["tasks-done"], metrics?.["tasks-total"])],
          ["Read by the region", amount(metrics?.["read-records"], metrics?.["read-bytes"])],
          ["Written by the step", amount(output?.rows, output?.bytes)],
        ]}
      />
      <p>
        <a href={writeAddress({ page: "job", id: props.job, tab: "logs", step: "" })}>Its output</a>
      </p>
      {failure && <Failure failure={failure} />}
    </Section>
  );
}

function progress(done = 0, total = 0): string {
  return total === 0 ? "–" : `${formatCount(done)} of ${formatCount(total)}`;
}

function amount(rows = 0, bytes = 0): string {
  return rows === 0 && bytes === 0 ? "–" : `${formatCount(rows)} rows, ${formatBytes(bytes)}`;
}
