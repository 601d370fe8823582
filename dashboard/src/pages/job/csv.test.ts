import assert from "node:assert/strict";
import { test } from "node:test";

import { toCsv } from "./csv.ts";

test("values with commas, quotes and line breaks are quoted, nested ones are JSON", () => {
  const table = {
    columns: [{ name: "a" }, { name: 'b "x"' }],
    rows: [
      [1, null],
      ["x,y", { k: [1, 2] }],
      ["two\nlines", true],
    ],
  };
  assert.equal(toCsv(table), 'a,"b ""x"""\r\n1,\r\n"x,y","{""k"":[1,2]}"\r\n"two\nlines",true\r\n');
});
