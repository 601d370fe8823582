// The steps of a job as they are drawn: from the plan, the states of its vertices and the attempts at its regions.
import type { AttemptInfo, JobAttempts, JobDetails, PlanInput, PlanNode, RegionAttempts, Vertex } from "../api/types.ts";

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

/** Returns the exchanges between the steps of a job. */
export function edgesOf(details: Pick<JobDetails, "plan">): readonly StepEdge[] {
  return details.plan.nodes.flatMap((node) =>
    (node.inputs ?? []).map((input: PlanInput) => ({ from: input.id, to: node.id, blocking: input.exchange === "blocking" })),
  );
}
