import assert from "node:assert/strict";
import { test } from "node:test";

import { concerns, concernsCluster } from "./queries.ts";

const JOB = "0".repeat(32);

test("a changed job outdates its own documents, the lists and the counts, and nothing of other jobs", () => {
  const changed = new Set([JOB]);
  for (const path of [`/jobs/${JOB}`, `/jobs/${JOB}/attempts`, "/jobs/overview?limit=50", "/overview", "/resources", "/taskmanagers/tm-1"])
    assert.ok(concerns(path, changed), path);
  for (const path of [`/jobs/${"1".repeat(32)}`, "/jobmanager/config", "/whoami", "/taskmanagers/tm-1/metrics?get=slots_used"])
    assert.ok(!concerns(path, changed), path);
});

test("a change of the cluster outdates what shows processes, slots and the queue, and no log or thread dump", () => {
  for (const path of ["/overview", "/resources", "/jobmanagers", "/taskmanagers", "/taskmanagers/tm-1"]) assert.ok(concernsCluster(path), path);
  for (const path of ["/taskmanagers/tm-1/log", "/taskmanagers/tm-1/metrics?get=slots_used", "/jobmanager/log", `/jobs/${JOB}`])
    assert.ok(!concernsCluster(path), path);
});
