import assert from "node:assert/strict";
import { test } from "node:test";

import { type FollowedDocument, Subscriptions } from "./subscriptions.ts";

const document: FollowedDocument = { path: "/a", status: 200, body: 1 };

test("a document that two parts of a page follow is one of the stream, and goes to both", () => {
  const subscriptions = new Subscriptions();
  const got: string[] = [];
  const end = subscriptions.add({ key: "/a", path: () => "/a", onDocument: () => got.push("one") });
  subscriptions.add({ key: "/a", path: () => "/a", onDocument: () => got.push("other") });
  assert.deepEqual([...subscriptions.paths()], [["/a", "/a"]]);
  subscriptions.deliver("/a", document);
  end();
  subscriptions.deliver("/a", document);
  assert.deepEqual(got, ["one", "other", "other"]);
});

test("output is followed from where it was read to, under the same key", () => {
  const subscriptions = new Subscriptions();
  let offset = 0;
  subscriptions.add({ key: "/logs", path: () => `/logs?offset=${offset}`, onDocument: () => undefined });
  offset = 7;
  assert.deepEqual([...subscriptions.paths()], [["/logs?offset=7", "/logs"]]);
  assert.deepEqual([...subscriptions.keys()], ["/logs"]);
});

test("the stream is notified of what is followed and of what is not any more", () => {
  const subscriptions = new Subscriptions();
  const seen: number[] = [];
  subscriptions.subscribe(() => seen.push(subscriptions.keys().size));
  subscriptions.add({ key: "/a", path: () => "/a", onDocument: () => undefined })();
  assert.deepEqual(seen, [1, 0]);
});
