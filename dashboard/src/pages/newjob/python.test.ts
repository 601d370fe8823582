import assert from "node:assert/strict";
import { test } from "node:test";

import { importsFlintlock, readContent, readingDocument } from "./python.ts";

const COLUMNS = ["kind", "job", "name", "line", "text"].map((name) => ({ name, type: "STRING" }));

test("a file that does not import flintlock is a program", () => {
  for (const text of ["import flintlock as fl", "x = 1\nfrom flintlock import Job", "if x:\n  import flintlock"]) assert.ok(importsFlintlock(text), text);
  for (const text of ["import flintlocker", "# import flintlock", "print('from flintlock')"]) assert.ok(!importsFlintlock(text), text);
});

test("the files beside it are there when it is read", () => {
  const { artifacts, params } = readingDocument("a.py", ["lib.py"]) as { artifacts: { name: string }[]; params: unknown };
  assert.deepEqual(artifacts.map(({ name }) => name), ["a.py", "lib.py"]);
  assert.deepEqual(params, { file: "a.py" });
});

test("each job has its document and its own files", async () => {
  const { jobs, problems } = readContent({
    columns: COLUMNS,
    rows: [
      ["document", "one", "", 0, '{"name":"first"}'],
      ["file", "one", "f.pickle", 0, btoa("\u0080ab")],
      ["document", "two", "", 0, '{"name":"second"}'],
      ["problem", "three", "", 7, "a.py:7: wrong"],
      ["problem", "", "", 0, "somewhere"],
    ],
  });
  assert.deepEqual(jobs.map(({ name, document, files }) => [name, document, files.map((file) => file.name)]), [
    ["one", { name: "first" }, ["f.pickle"]],
    ["two", { name: "second" }, []],
  ]);
  assert.deepEqual([...new Uint8Array((await jobs[0]?.files[0]?.arrayBuffer()) ?? new ArrayBuffer(0))], [0x80, 0x61, 0x62]);
  assert.deepEqual(problems, [{ line: 7, message: "a.py:7: wrong" }, { line: 1, message: "somewhere" }]);
});

test("a program defines no job", () => {
  assert.deepEqual(readContent({ columns: COLUMNS, rows: [["program", "", "", 0, ""]] }), { jobs: [], problems: [] });
});
