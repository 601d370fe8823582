import assert from "node:assert/strict";
import { test } from "node:test";

import type { Job } from "../../live/jobs.ts";
import { activityOf, MINUTES } from "./activity.ts";

function job(start: number, end: number, state = "FINISHED"): Job {
  return { "start-time": start, "end-time": end, state } as unknown as Job;
}

test("jobs are counted in the minute in which they began and ended, the present minute is the last", () => {
  const now = 100 * 60_000 + 30_000;
  const { started, ended, failed } = activityOf([job(now - 60_000, now), job(now - 1000, -1, "RUNNING"), job(now - 1000, now, "FAILED")], now);
  assert.deepEqual(started.slice(-2), [1, 2]);
  assert.deepEqual([ended.at(-1), failed.at(-1), started.length], [2, 1, MINUTES]);
});

test("older jobs, and those of a clock that is ahead, are not counted", () => {
  const { started } = activityOf([job(0, 1), job(1e12, -1)], 90 * 60_000);
  assert.equal(started.reduce((sum, count) => sum + count, 0), 0);
});

test("the time from submission to start is the longest of the jobs that began to run in a minute, where it is known", () => {
  const now = 100 * 60_000 + 30_000;
  const ran = (start: number, first: number): Job => ({ ...job(start, -1, "RUNNING"), "first-run": first }) as Job;
  const { waited } = activityOf([ran(now - 90_000, now - 1000), ran(now - 2000, now - 1000), ran(now - 70_000, now - 60_000), job(now, -1)], now);
  assert.deepEqual(waited.slice(-2), [10_000, 89_000]);
});
