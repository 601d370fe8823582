// The steps of a job as they are drawn: from the plan, the states of its vertices and the attempts at its regions.
import type { AttemptInfo, JobAttempts, JobDetails, PlanInput, PlanNode, RegionAttempts, Vertex } from "../api/types.ts";
import { formatBytes, formatCount } from "../formats/formats.ts";

export interface Step {
  readonly id: string;
  readonly name: string;
  /** What kind of step it is, `Source`, `Sink` or `Result`; empty for all others. */
  readonly kind: string;
  readonly region: string;
  readonly state: string;
  readonly node: PlanNode;
  readonly vertex: Vertex | undefined;
  readonly attempts: RegionAttempts | undefined;
  /** The attempt that counts now. */
  readonly latest: AttemptInfo | undefined;
}

export interface StepEdge {
  readonly from: string;
  readonly to: string;
  readonly blocking: boolean;
  /** What was passed on, as text; empty: Spark has not counted it. */
  readonly amount?: string;
}

const KINDS = /^(Source|Sink|Result|Program): /;

/** Returns the steps of a job, in the order of its plan. */
export function stepsOf(details: JobDetails, attempts: JobAttempts | undefined): readonly Step[] {
  const vertices = new Map(details.vertices.map((vertex) => [vertex.id, vertex]));
  const regions = new Map<string, RegionAttempts>();
  for (const region of attempts?.regions ?? []) for (const step of region.steps ?? []) regions.set(step, region);
  return details.plan.nodes.map((node) => {
    const vertex = vertices.get(node.id);
    const title = vertex?.name ?? node.description;
    const kind = KINDS.exec(title)?.[1] ?? "";
    const name = kind === "" ? title : title.slice(kind.length + 2);
    const region = regions.get(name);
    return {
      id: node.id,
      name,
      kind,
      region: vertex?.slotSharingGroupId ?? node.id,
      state: vertex?.status ?? "CREATED",
      node,
      vertex,
      attempts: region,
      latest: region?.attempts?.at(-1),
    };
  });
}

/** Returns the exchanges between the steps of a job. Of a step whose output was counted they have its rows and bytes. */
export function edgesOf(details: Pick<JobDetails, "plan">, steps: readonly Step[] = []): readonly StepEdge[] {
  const amounts = new Map(steps.map((step) => [step.id, amountOf(step)]));
  return details.plan.nodes.flatMap((node) =>
    (node.inputs ?? []).map((input: PlanInput) => ({
      from: input.id,
      to: node.id,
      blocking: input.exchange === "blocking",
      amount: amounts.get(input.id) ?? "",
    })),
  );
}

/** Returns the rows and bytes that a step has put out, as text; empty where they are not counted. */
export function amountOf(step: Step): string {
  const output = step.latest?.outputs?.find((item) => item.step === step.name);
  return output === undefined ? "" : `${formatCount(output.rows ?? 0)} rows, ${formatBytes(output.bytes ?? 0)}`;
}
