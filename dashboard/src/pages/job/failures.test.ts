import assert from "node:assert/strict";
import { test } from "node:test";

import type { AttemptInfo, FailureInfo, JobAttempts } from "../../api/types.ts";
import { failuresOf } from "./failures.ts";

const failure = (message: string): FailureInfo => ({ kind: "user code", message });
const attempt = (number: number, at: number, message?: string): AttemptInfo => ({
  attempt: number,
  state: "FAILED",
  timestamps: { RUNNING: at - 1, FAILED: at },
  ...(message === undefined ? {} : { failure: failure(message) }),
});
const job = (attempts: readonly AttemptInfo[], cause?: FailureInfo): JobAttempts => ({
  jobid: "a",
  name: "a",
  status: "FAILED",
  "end-time": 99,
  regions: [{ region: 0, attempts }],
  ...(cause === undefined ? {} : { failure: cause }),
});

test("what ended the job comes first and once, then the latest", () => {
  const shown = failuresOf(job([attempt(0, 10, "one"), attempt(1, 20, "two"), attempt(2, 30, "three")], failure("two")));
  assert.deepEqual(
    shown.map((item) => [item.failure.message, item.attempt?.info.attempt, item.ended]),
    [
      ["two", 1, true],
      ["three", 2, false],
      ["one", 0, false],
    ],
  );
});

test("a cause that is no attempt's is shown by itself", () => {
  const [first, ...others] = failuresOf(job([attempt(0, 10)], failure("the deadline")));
  assert.deepEqual([first?.failure.message, first?.attempt, first?.at, others], ["the deadline", null, 99, []]);
});

test("a job that goes on after failures has no cause of an end", () => {
  assert.deepEqual(failuresOf(job([attempt(0, 10, "one"), attempt(1, 20)])).map((item) => item.ended), [false]);
});
