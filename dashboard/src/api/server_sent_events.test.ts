import assert from "node:assert/strict";
import { test } from "node:test";

import { parseEvents } from "./server_sent_events.ts";

test("an event that has not arrived completely is kept for the next piece", () => {
  const first = parseEvents('event: job\ndata: {"a":1}\n\nevent: job\nda');
  assert.deepEqual(first.events, [{ event: "job", data: '{"a":1}' }]);
  const second = parseEvents(`${first.rest}ta: {"a":2}\n\n`);
  assert.deepEqual(second, { events: [{ event: "job", data: '{"a":2}' }], rest: "" });
});

test("a comment is no event", () => {
  assert.deepEqual(parseEvents(": nothing new\n\n"), { events: [], rest: "" });
});

test("data of several lines is joined", () => {
  assert.deepEqual(parseEvents("data: a\ndata: b\n\n").events, [{ event: "message", data: "a\nb" }]);
});

test("an event may have an id", () => {
  assert.deepEqual(parseEvents("event: listed\nid: 7\ndata: {}\n\n").events, [{ event: "listed", data: "{}", id: "7" }]);
});
