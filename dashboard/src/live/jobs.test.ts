import assert from "node:assert/strict";
import { test } from "node:test";

import { type Job, type LiveEvent, type LiveJobs, MOST_ENDED, NOTHING_KNOWN } from "./jobs.ts";
import { clusterTime, durationOf, reduceLive, shownState } from "./jobs.ts";

function job(id: string, values: Partial<Job> = {}): Job {
  const tasks = {
    running: 0, canceling: 0, canceled: 0, total: 1, created: 1, scheduled: 0, deploying: 0, reconciling: 0,
    finished: 0, initializing: 0, failed: 0,
  };
  return {
    jid: id, name: id, jobType: "BATCH", schedulerType: "Default", "start-time": 1000, "end-time": -1, duration: 0,
    state: "RUNNING", "last-modification": 1000, tasks, "pending-operators": 0, ...values,
  };
}

function after(...events: readonly LiveEvent[]): LiveJobs {
  return events.reduce(reduceLive, NOTHING_KNOWN);
}

const OPENED: LiveEvent = { kind: "opened" };
const LISTED: LiveEvent = { kind: "listed" };
const changed = (...jobs: readonly Job[]): LiveEvent => ({ kind: "changed", jobs, now: 0 });

test("nothing is shown as current before all jobs are listed", () => {
  const before = after(OPENED, changed(job("a")));
  assert.equal(before.connection, "connecting");
  assert.equal(before.jobs.size, 0);
  const listed = reduceLive(before, LISTED);
  assert.equal(listed.connection, "live");
  assert.deepEqual([...listed.jobs.keys()], ["a"]);
});

test("an empty cluster is one that has listed no job", () => {
  const state = after(OPENED, LISTED);
  assert.deepEqual([state.connection, state.jobs.size, state.incoming], ["live", 0, null]);
});

test("the latest line of a job counts", () => {
  const state = after(OPENED, LISTED, changed(job("a")), changed(job("a", { state: "FINISHED", "end-time": 3000 })));
  assert.equal(state.jobs.get("a")?.state, "FINISHED");
});

test("after a lost connection the old jobs stay until the new ones are listed, and those that are gone go", () => {
  const lost = after(OPENED, changed(job("a"), job("b")), LISTED, { kind: "lost", lastHeard: 5000 });
  assert.deepEqual([lost.connection, lost.lostSince], ["lost", 5000]);
  assert.equal(reduceLive(lost, { kind: "lost", lastHeard: 9000 }).lostSince, 5000);
  const again = [OPENED, changed(job("b", { state: "FINISHED", "end-time": 4000 }))].reduce(reduceLive, lost);
  assert.deepEqual([again.connection, again.jobs.size, again.jobs.get("b")?.state], ["lost", 2, "RUNNING"]);
  const listed = reduceLive(again, LISTED);
  assert.deepEqual([listed.connection, listed.lostSince, [...listed.jobs.keys()]], ["live", null, ["b"]]);
  assert.equal(listed.jobs.get("b")?.state, "FINISHED");
});

test("the jobs are listed again on the same connection when the leader changes", () => {
  const state = after(OPENED, changed(job("a")), LISTED, changed(job("a", { name: "new" })), LISTED);
  assert.deepEqual([state.connection, state.jobs.get("a")?.name], ["live", "new"]);
});

test("a stream that is resumed changes what was known, and lists nothing again", () => {
  const lost = after(OPENED, changed(job("a"), job("b")), LISTED, { kind: "lost", lastHeard: 5000 });
  const resumed = [OPENED, { kind: "resumed" } as const, changed(job("b", { name: "new" }))].reduce(reduceLive, lost);
  assert.deepEqual([resumed.connection, resumed.lostSince, resumed.incoming], ["live", null, null]);
  assert.deepEqual([...resumed.jobs.values()].map(({ name }) => name), ["a", "new"]);
});

test("a duration is measured by the cluster's clock, and stands still while the connection is lost", () => {
  const running = job("a", { "start-time": 1_000_000, duration: 500 });
  const live = after(OPENED, { kind: "changed", jobs: [running], now: 40_000 }, LISTED);
  assert.equal(durationOf(running, clusterTime(live, 41_000)), 1500);
  const lost = reduceLive(live, { kind: "lost", lastHeard: 42_000 });
  assert.equal(durationOf(running, clusterTime(lost, 99_000)), 2500);
  assert.equal(durationOf(job("b", { "start-time": 10, "end-time": 30 }), 99_000), 20);
});

test("a job that waits is not shown as running", () => {
  assert.equal(shownState(job("a", { "waits-for": "slots" })), "WAITING");
  assert.equal(shownState(job("a")), "RUNNING");
});

test("of ended jobs the latest are remembered, and all that have not ended", () => {
  const ended = Array.from({ length: MOST_ENDED * 2 }, (_, index) =>
    job(`e${index}`, { state: "FINISHED", "end-time": index }),
  );
  const state = after(OPENED, LISTED, changed(job("a"), ...ended));
  assert.equal(state.jobs.size, MOST_ENDED + 1);
  assert.ok(state.jobs.has("a") && state.jobs.has(`e${MOST_ENDED * 2 - 1}`) && !state.jobs.has("e0"));
});

test("an event changes nothing of what was known before it", () => {
  const before = after(OPENED, changed(job("a")), LISTED);
  reduceLive(before, changed(job("b")));
  assert.deepEqual([...before.jobs.keys()], ["a"]);
});
