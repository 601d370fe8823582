import assert from "node:assert/strict";
import { test } from "node:test";

import type { JobAttempts } from "../../api/types.ts";
import { enginesOf } from "./engines.ts";

test("the engines of a job are those of the TaskManagers that run its attempts now", () => {
  const attempt = (state: string, id: string): object => ({ attempt: 0, state, "taskmanager-id": id });
  const regions = [
    { region: 0, attempts: [attempt("FAILED", "tm-0"), attempt("RUNNING", "tm-1")] },
    { region: 1, attempts: [attempt("RUNNING", "tm-1"), attempt("RUNNING", "tm-2")] },
  ];
  assert.deepEqual(enginesOf({ regions } as unknown as JobAttempts), ["tm-1", "tm-2"]);
  assert.deepEqual(enginesOf(undefined), []);
});
