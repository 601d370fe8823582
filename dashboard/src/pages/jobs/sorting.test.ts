import assert from "node:assert/strict";
import { test } from "node:test";

import type { Job } from "../../live/jobs.ts";
import { nextSort, orderOf, sorted } from "./sorting.ts";

function job(name: string, start: number, end: number, finished = 0): Job {
  return { jid: name, name, state: "RUNNING", "start-time": start, "end-time": end, tasks: { finished, total: 4 } } as unknown as Job;
}

const JOBS = [job("job 10", 30, -1, 1), job("job 9", 20, 90, 4), job("Ärger", 10, 15, 1)];
const names = (sort: string): readonly string[] => sorted(JOBS, sort, 50).map(({ name }) => name);

test("without an order the jobs stay as the server has them", () => {
  assert.deepEqual(names(""), ["job 10", "job 9", "Ärger"]);
  assert.equal(orderOf(""), null);
});

test("names are sorted as people sort them, and numbers by their value", () => {
  assert.deepEqual(names("name"), ["Ärger", "job 9", "job 10"]);
  assert.deepEqual(names("-duration"), ["job 9", "job 10", "Ärger"]);
});

test("jobs that are equal in the order stay as they are, in both directions", () => {
  assert.deepEqual(names("steps"), ["job 10", "Ärger", "job 9"]);
  assert.deepEqual(names("-steps"), ["job 9", "job 10", "Ärger"]);
});

test("a click on a column asks for what is wanted first, another one for the reverse", () => {
  assert.equal(nextSort("", "duration"), "-duration");
  assert.equal(nextSort("-duration", "duration"), "duration");
  assert.equal(nextSort("-duration", "name"), "name");
  assert.equal(nextSort("name", "name"), "-name");
});
