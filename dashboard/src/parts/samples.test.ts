import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_SAMPLES, type Sample, samplesOf, withSample } from "./samples.ts";

test("each response is a sample, also one with the same values", () => {
  const first = withSample([], [{ id: "tasks", value: "2" }], 10);
  const both = withSample(first, [{ id: "tasks", value: "2" }], 20);
  assert.deepEqual(samplesOf(both, "tasks"), [{ at: 10, value: 2 }, { at: 20, value: 2 }]);
  assert.equal(first.length, 1);
});

test("a metric that has no number at a time has no value then, and not 0", () => {
  let samples: readonly Sample[] = withSample([], [{ id: "memory", value: "NaN" }, { id: "tasks", value: null }], 10);
  samples = withSample(samples, [{ id: "memory", value: "1.5" }], 20);
  assert.deepEqual(samplesOf(samples, "memory"), [{ at: 20, value: 1.5 }]);
  assert.deepEqual(samplesOf(samples, "tasks"), []);
});

test("the latest samples are remembered", () => {
  let samples: readonly Sample[] = [];
  for (let at = 0; at < MOST_SAMPLES + 5; at += 1) samples = withSample(samples, [{ id: "tasks", value: `${at}` }], at);
  assert.deepEqual([samples.length, samples[0]?.at], [MOST_SAMPLES, 5]);
});
