import assert from "node:assert/strict";
import { test } from "node:test";

import { hasRole, mayChangeJob } from "./roles.ts";

test("a role includes those before it", () => {
  assert.ok(hasRole({ role: "admin" }, "operator"));
  assert.ok(!hasRole({ role: "viewer" }, "submitter"));
  assert.ok(!hasRole(undefined, "viewer"));
});

test("a submitter may change the own jobs, an operator all", () => {
  assert.ok(mayChangeJob({ role: "submitter", name: "maria" }, "maria"));
  assert.ok(!mayChangeJob({ role: "submitter", name: "eve" }, "maria"));
  assert.ok(mayChangeJob({ role: "operator", name: "eve" }, "maria"));
  assert.ok(!mayChangeJob({ role: "viewer", name: "maria" }, "maria"));
});
