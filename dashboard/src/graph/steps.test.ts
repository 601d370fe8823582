import assert from "node:assert/strict";
import { test } from "node:test";

import type { JobAttempts, JobDetails } from "../api/types.ts";
import { edgesOf, stepsOf } from "./steps.ts";

const node = (id: string, description: string, ...inputs: readonly [string, string][]) => ({
  id,
  operator: "",
  parallelism: 1,
  operator_strategy: "",
  description,
  optimizer_properties: {},
  inputs: inputs.map(([from, exchange], num) => ({ num, id: from, ship_strategy: "FORWARD", exchange })),
});
const vertex = (id: string, name: string, group: string, status: string) => ({ id, name, slotSharingGroupId: group, status });

const DETAILS = {
  vertices: [
    vertex("1", "Source: orders", "g0", "FINISHED"),
    vertex("2", "clean", "g0", "FINISHED"),
    vertex("3", "Sink: out", "g1", "RUNNING"),
  ],
  plan: {
    nodes: [
      node("1", "Source: orders"),
      node("2", "clean", ["1", "pipelined_bounded"]),
      node("3", "Sink: out", ["2", "blocking"]),
    ],
  },
} as unknown as JobDetails;
const ATTEMPTS = {
  regions: [
    { region: 0, steps: ["orders", "clean"], attempts: [{ attempt: 0, state: "FAILED" }, { attempt: 1, state: "FINISHED" }] },
    { region: 1, steps: ["out"], attempts: [{ attempt: 0, state: "RUNNING" }] },
  ],
} as unknown as JobAttempts;

test("a step has its kind, its state, and the attempts at its region, of which the latest counts", () => {
  const steps = stepsOf(DETAILS, ATTEMPTS);
  assert.deepEqual(
    steps.map((step) => [step.kind, step.name, step.region, step.state, step.latest?.attempt]),
    [
      ["Source", "orders", "g0", "FINISHED", 1],
      ["", "clean", "g0", "FINISHED", 1],
      ["Sink", "out", "g1", "RUNNING", 0],
    ],
  );
});

test("steps are drawn before anything is known of their attempts", () => {
  assert.deepEqual(stepsOf(DETAILS, undefined).map((step) => step.latest), [undefined, undefined, undefined]);
});

test("blocking exchanges are marked", () => {
  assert.deepEqual(edgesOf(DETAILS), [
    { from: "1", to: "2", blocking: false, amount: "" },
    { from: "2", to: "3", blocking: true, amount: "" },
  ]);
});

test("an exchange has the rows and bytes of the step before it, as far as they were counted", () => {
  const attempts = {
    regions: [{ region: 0, steps: ["orders", "clean"], attempts: [{ attempt: 0, state: "FINISHED", outputs: [{ step: "clean", rows: 1200, bytes: 2048 }] }] }],
  } as unknown as JobAttempts;
  assert.deepEqual(edgesOf(DETAILS, stepsOf(DETAILS, attempts)).map(({ amount }) => amount), ["", "1,200 rows, 2.00 KiB"]);
});
