import assert from "node:assert/strict";
import { test } from "node:test";

import { elapsed, firstLine, formatBytes, formatCount, formatDuration, formatExactTime, formatTime } from "./formats.ts";

test("a duration has its two largest units and is never rounded up", () => {
  const expected: readonly [number, string][] = [
    [0, "0 ms"],
    [999.9, "999 ms"],
    [1000, "1.0 s"],
    [9_999, "9.9 s"],
    [59_999, "59 s"],
    [60_000, "1 min 0 s"],
    [3_599_999, "59 min 59 s"],
    [7_260_000, "2 h 1 min"],
    [100 * 3_600_000, "4 d 4 h"],
    [-1, "–"],
    [Number.NaN, "–"],
  ];
  for (const [ms, text] of expected) assert.equal(formatDuration(ms), text);
});

test("the time between two times is not negative after the clock was set back", () => {
  assert.equal(elapsed(1_000, 4_000), 3_000);
  assert.equal(elapsed(4_000, 1_000), 0);
});

test("a size has three digits", () => {
  const expected: readonly [number, string][] = [
    [0, "0 bytes"],
    [1, "1 byte"],
    [1023, "1023 bytes"],
    [1024, "1.00 KiB"],
    [1024 * 9.996, "10.0 KiB"],
    [1024 * 1023.96, "1.00 MiB"],
    [12.3 * 1024 ** 3, "12.3 GiB"],
    [5000 * 1024 ** 5, "5000 PiB"],
    [-1, "–"],
  ];
  for (const [bytes, text] of expected) assert.equal(formatBytes(bytes), text);
});

test("a count has its digits in groups", () => {
  assert.equal(formatCount(1234567, "en"), "1,234,567");
});

test("a time of today has no date, another one has", () => {
  const now = Date.UTC(2026, 10, 16, 15, 0, 0);
  assert.equal(formatTime(now - 3_600_000, now, "en-GB", "UTC"), "14:00:00");
  assert.equal(formatTime(now - 86_400_000, now, "en-GB", "UTC"), "15 Nov 2026, 15:00:00");
  assert.equal(formatTime(now, now, "en-GB", "Asia/Tokyo"), "00:00:00");
  assert.equal(formatTime(-1, now, "en-GB", "UTC"), "–");
  assert.equal(formatExactTime(now), "2026-11-16T15:00:00.000Z");
});

test("a message of a megabyte is shown by its first line", () => {
  assert.equal(firstLine("short\nmore"), "short");
  assert.equal(firstLine("x".repeat(1_000_000)).length, 201);
});
