import assert from "node:assert/strict";
import { test } from "node:test";

import { nextSort, orderOf } from "./sorting.ts";

test("without an order the newest job is first", () => {
  assert.deepEqual(orderOf(""), { column: "start", descending: true });
  assert.deepEqual(orderOf("name"), { column: "name", descending: false });
});

test("a click on a column asks for what is wanted first, another one for the reverse", () => {
  assert.equal(nextSort("", "duration"), "-duration");
  assert.equal(nextSort("-duration", "duration"), "duration");
  assert.equal(nextSort("-duration", "name"), "name");
  assert.equal(nextSort("name", "name"), "-name");
});

test("the order of the server needs none in the address", () => {
  assert.equal(nextSort("", "start"), "start");
  assert.equal(nextSort("start", "start"), "");
  assert.equal(nextSort("name", "start"), "");
});
