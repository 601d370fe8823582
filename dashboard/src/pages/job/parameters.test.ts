import assert from "node:assert/strict";
import { test } from "node:test";

import { changedParameters } from "./parameters.ts";

const PARAMS = { many: 5, day: "2026-01-01", dry: false, key: "${secret:KEY}" };

test("only what was changed is sent, with the type that it had", () => {
  assert.deepEqual(changedParameters(PARAMS, {}), {});
  assert.deepEqual(changedParameters(PARAMS, { many: "5", day: "2026-01-01" }), {});
  assert.deepEqual(changedParameters(PARAMS, { many: "7", day: "5", dry: "true" }), { many: 7, day: "5", dry: true });
});

test("a text that is no number is sent as it is: the cluster says what is wrong with it", () => {
  assert.deepEqual(changedParameters(PARAMS, { many: "a lot", other: "1" }), { many: "a lot" });
});
