import assert from "node:assert/strict";
import { test } from "node:test";

import { parametersOf, programDocument, readJobText, withParameters } from "./document.ts";

const TEXT = `version: 1
name: revenue
params: {day: 2026-01-01, limit: 5, dry: false}
config:
  rest.port: 1
steps:
  orders:
    source: {format: parquet, path: /data}
  top: {result: {}, inputs: [orders, nothing]}
`;

test("a document is read as the cluster reads it: dates are texts", () => {
  const { content, problems } = readJobText(TEXT);
  assert.deepEqual(problems, []);
  assert.deepEqual(parametersOf(content), { day: "2026-01-01", limit: 5, dry: false });
});

test("a problem is at the line of its key, or of the nearest one around it", () => {
  const { lineOf } = readJobText(TEXT);
  assert.deepEqual(
    [["name"], ["steps", "orders"], ["steps", "orders", "source.path"], ["steps", "top", "inputs"], ["config.rest.port"]].map(lineOf),
    [2, 7, 8, 9, 5],
  );
  assert.deepEqual([lineOf(["steps", "gone", "sql"]), lineOf([])], [6, 1]);
});

test("text that is no YAML has a problem at its line, and is no failure", () => {
  const { content, problems } = readJobText("name: a\nsteps: [\n");
  assert.equal(content, undefined);
  assert.ok(problems.length > 0 && problems.every((problem) => problem.line >= 1 && problem.message !== ""));
  assert.equal(readJobText("a: 1\na: 2\n").problems[0]?.line, 2);
  assert.equal(readJobText("x".repeat(1_000_001)).problems.length, 1);
});

test("an alias that grows without end is a problem", () => {
  const bomb = ["a: &a [1,1,1,1,1,1,1,1,1]", ...["b", "c", "d", "e", "f"].map((key, index) => `${key}: &${key} [${Array(9).fill(`*${"abcde"[index]}`)}]`)];
  assert.equal(readJobText(bomb.join("\n")).problems.length, 1);
});

test("a parameter keeps its type", () => {
  const { content } = readJobText(TEXT);
  const changed = withParameters(content, { day: "2026-02-01", limit: "7", dry: "true" });
  assert.deepEqual(parametersOf(changed), { day: "2026-02-01", limit: 7, dry: true });
  assert.deepEqual(parametersOf(withParameters(content, { limit: "many" })), { day: "2026-01-01", limit: "many", dry: false });
  assert.equal(withParameters("text", { a: "b" }), "text");
});

test("a Python file is a program", () => {
  assert.deepEqual(programDocument("words.py", ["--day", "1"]), {
    version: 1,
    name: "words",
    artifacts: [{ name: "words.py", kind: "file" }],
    steps: { program: { program: { file: "words.py", args: ["--day", "1"] } } },
  });
});

test("the files beside a program are sent with it, modules so that they can be imported", () => {
  const { artifacts } = programDocument("a.py", [], ["lib.py", "words.txt"]) as { artifacts: unknown };
  assert.deepEqual(artifacts, [{ name: "a.py", kind: "file" }, "lib.py", { name: "words.txt", kind: "file" }]);
});
