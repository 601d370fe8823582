import assert from "node:assert/strict";
import { test } from "node:test";

import type { JobChange } from "../../api/types.ts";
import { progressOf, progressOfChange, savepointsOf, takesSavepoints } from "./savepoints.ts";

test("savepoints are requested of streaming jobs that neither have ended nor are about to", () => {
  const allowed = ["RUNNING", "RESTARTING", "CANCELLING", "FAILING", "FINISHED"].filter((state) => takesSavepoints({ "job-type": "STREAMING", state }));
  assert.deepEqual(allowed, ["RUNNING", "RESTARTING"]);
  assert.ok(!takesSavepoints({ "job-type": "BATCH", state: "RUNNING" }));
});

test("a savepoint is in progress until its request is completed, with a place or with the reason why there is none", () => {
  assert.deepEqual(progressOf(undefined), { state: "in progress" });
  assert.deepEqual(progressOf({ status: { id: "IN_PROGRESS" } }), { state: "in progress" });
  assert.deepEqual(progressOf({ status: { id: "COMPLETED" }, operation: { location: "/s/one" } }), { state: "made", location: "/s/one" });
  const cause = { class: "Unavailable", "stack-trace": "no space", "serialized-throwable": "" };
  assert.deepEqual(progressOf({ status: { id: "COMPLETED" }, operation: { "failure-cause": cause } }), { state: "failed", reason: "no space" });
});

test("of the changes of a job the savepoints are listed, the latest first, each with what came of it", () => {
  const changes: readonly JobChange[] = [
    { kind: "savepoint", requested: 1, status: "COMPLETED", location: "/s/one" },
    { kind: "rescale", requested: 2 },
    { kind: "savepoint", requested: 3, status: "COMPLETED", failure: "no space" },
    { kind: "stop", requested: 4, status: "IN_PROGRESS" },
  ];
  const listed = savepointsOf(changes);
  assert.deepEqual(listed.map(({ requested }) => requested), [4, 3, 1]);
  assert.deepEqual(listed.map((change) => progressOfChange(change).state), ["in progress", "failed", "made"]);
});
