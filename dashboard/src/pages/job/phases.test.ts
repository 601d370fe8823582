import assert from "node:assert/strict";
import { test } from "node:test";

import { phasesOf, rangeOf } from "./phases.ts";

test("a phase lasts until the next state, the last one until now", () => {
  const timestamps = { RUNNING: 40, CREATED: 10, SCHEDULED: 10, DEPLOYING: 30, FINISHED: 0 };
  assert.deepEqual(phasesOf({ state: "RUNNING", timestamps }, 100), [
    { state: "CREATED", from: 10, to: 10 },
    { state: "SCHEDULED", from: 10, to: 30 },
    { state: "DEPLOYING", from: 30, to: 40 },
    { state: "RUNNING", from: 40, to: 100 },
  ]);
});

test("the end of an attempt is the end of its last phase, not a phase", () => {
  assert.deepEqual(phasesOf({ state: "FAILED", timestamps: { RUNNING: 40, FAILED: 60 } }, 100), [
    { state: "RUNNING", from: 40, to: 60 },
  ]);
});

test("what is published is a phase of its own, although the state of the attempt stays RUNNING", () => {
  const timestamps = { RUNNING: 40, FINISHED: 90 };
  assert.deepEqual(phasesOf({ state: "FINISHED", timestamps, publishing: 60 }, 100), [
    { state: "RUNNING", from: 40, to: 60 },
    { state: "PUBLISHING", from: 60, to: 90 },
  ]);
});

test("a clock that was set back makes no phase of negative length", () => {
  assert.deepEqual(phasesOf({ state: "RUNNING", timestamps: { RUNNING: 40 } }, 30), [{ state: "RUNNING", from: 40, to: 40 }]);
  assert.deepEqual(rangeOf([{ state: "RUNNING", from: 40, to: 40 }]), { from: 40, to: 41 });
  assert.deepEqual(rangeOf([]), { from: 0, to: 1 });
});
