import assert from "node:assert/strict";
import { test } from "node:test";

import type { WaitingJob } from "../../api/types.ts";
import type { Job } from "../../live/jobs.ts";
import { queueOf } from "./queue.ts";

function job(id: string, values: Partial<Job> = {}): Job {
  return { jid: id, name: id, state: "RUNNING", "start-time": 1, "end-time": -1, "waits-for": "slots", ...values } as unknown as Job;
}

const LISTED = [{ jobid: "b" }, { jobid: "a" }] as unknown as readonly WaitingJob[];

test("the order is that of the ResourceManager", () => {
  assert.deepEqual(queueOf(LISTED, [job("a"), job("b")]).map((item) => item.jobid), ["b", "a"]);
});

test("a job of which an event says that it waits is there before the queue is read again, last", () => {
  const queue = queueOf(LISTED, [job("c", { "start-time": 3 }), job("d", { "start-time": 2 }), job("e", { "waits-for": "" })]);
  assert.deepEqual(queue.map(({ jobid, known }) => [jobid, known]), [["b", true], ["a", true], ["d", false], ["c", false]]);
});

test("a job that has ended is gone before the queue is read again", () => {
  assert.deepEqual(queueOf(LISTED, [job("b", { state: "CANCELED", "end-time": 5 })]).map((item) => item.jobid), ["a"]);
});
