import { type ReactNode, useState } from "react";

import { type DrawnStep, Drawing } from "../../graph/Drawing.tsx";
import { edgesOf } from "../../graph/steps.ts";
import { Empty, Section } from "../../parts/Section.tsx";
import { Facts } from "../../parts/Facts.tsx";
import type { Check } from "./useCheck.ts";

/** The plan of a document that is valid: its steps in their regions, and what a chosen one does. */
export function PlanPreview({ check }: { readonly check: Check }): ReactNode {
  const [chosen, setChosen] = useState("");
  const { plan } = check;
  if (plan === null)
    return (
      <Section title="Plan">
        <Empty>{check.problems.length > 0 ? "The plan appears when the problems are solved." : "Nothing to show yet."}</Empty>
      </Section>
    );
  const regionOf = new Map(check.regions.flatMap((steps, region) => steps.map((step) => [step, `${region}`] as const)));
  const steps: readonly DrawnStep[] = plan.nodes.map((node) => ({
    id: node.id,
    name: node.step ?? "",
    region: regionOf.get(node.step ?? "") ?? node.id,
    state: "",
    subtitle: node.kind ?? "",
    detail: node.guarantee ?? "",
    progress: null,
  }));
  const opened = plan.nodes.find((node) => node.step === chosen);
  return (
    <Section title="Plan" aside={`${plan.type.toLowerCase()}, ${check.regions.length === 1 ? "1 region" : `${check.regions.length} regions`}`}>
      <Drawing steps={steps} edges={edgesOf({ plan })} selected={chosen} onOpen={(name) => setChosen(name === chosen ? "" : name)} />
      {opened !== undefined && (
        <Facts
          items={[
            ["Step", opened.step],
            ["Does", <code key="does">{opened.definition}</code>],
            ["Guarantee", opened.guarantee || "–"],
          ]}
        />
      )}
    </Section>
  );
}
