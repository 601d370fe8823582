import assert from "node:assert/strict";
import { test } from "node:test";

import { type Address, ALL_JOBS, listingPath, readAddress, writeAddress } from "./address.ts";

const JOB = "0123456789abcdef0123456789abcdef";

test("every address is read as it was written", () => {
  const addresses: readonly Address[] = [
    { page: "overview" },
    { page: "jobs", filter: ALL_JOBS },
    {
      page: "jobs",
      filter: { name: "täglich & <b>*", states: ["FAILED", "WAITING"], label: "a=b=c,d", user: "oidc:eve", within: "1h", after: `5-${JOB}`, sort: "-duration" },
    },
    { page: "job", id: JOB, tab: "logs", step: "" },
    { page: "job", id: JOB, tab: "graph", step: "a?b#c&d" },
    { page: "taskmanagers" },
    { page: "taskmanager", id: "host/1:a b%2F" },
    { page: "jobmanager" },
  ];
  for (const address of addresses) assert.deepEqual(readAddress(writeAddress(address)), address);
});

test("an address without a page is the overview, another one is unknown", () => {
  for (const hash of ["", "#", "#/"]) assert.deepEqual(readAddress(hash), { page: "overview" });
  for (const hash of ["#/x", "#/jobs/x", `#/jobs/${JOB}/nothing`, `#/jobs/${JOB}/logs/x`, "#/taskmanagers/%/x"])
    assert.deepEqual(readAddress(hash), { page: "unknown" });
});

test("what no filter has is left out", () => {
  assert.deepEqual(readAddress("#/jobs?state=NONE,RUNNING&within=3h&other=1&sort=-x"), {
    page: "jobs",
    filter: { ...ALL_JOBS, states: ["RUNNING"] },
  });
});

test("a filter and an order are a query of the server, and a name without a star is any part of a name", () => {
  assert.equal(listingPath(ALL_JOBS, 0, 100), "/jobs/overview?limit=100");
  const filter = { name: "day", states: ["FAILED"], label: "team=core", user: "eve", within: "1h", after: "7-x", sort: "name" };
  const values = new URLSearchParams(listingPath(filter, 7_260_999, 50).split("?")[1]);
  assert.deepEqual(Object.fromEntries(values), {
    limit: "50",
    name: "*day*",
    state: "FAILED",
    label: "team=core",
    "submitted-by": "eve",
    since: "3660000",
    after: "7-x",
    sort: "name",
  });
  assert.match(listingPath({ ...ALL_JOBS, name: "day*" }, 0, 1), /name=day\*$/);
});
