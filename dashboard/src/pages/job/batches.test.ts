import assert from "node:assert/strict";
import { test } from "node:test";

import type { CheckpointsResponse, CompletedCheckpoint, QueryInfo } from "../../api/types.ts";
import { byQuery, MOST_BATCHES, rateOf, watermarkLag, withBatches, withFigures } from "./batches.ts";

function batch(id: number, values: Partial<CompletedCheckpoint> = {}): CompletedCheckpoint {
  return {
    id, trigger_timestamp: id, latest_ack_timestamp: id, checkpointed_size: 0, state_size: 0, end_to_end_duration: 500,
    external_path: "", uid: "files", ...values,
  };
}

function listed(...history: readonly CompletedCheckpoint[]): CheckpointsResponse {
  return { history } as unknown as CheckpointsResponse;
}

test("batches that the cluster no longer lists are remembered, each once, oldest first", () => {
  const first = withBatches([], listed(batch(2), batch(1)));
  const second = withBatches(first, listed(batch(3), batch(2)));
  assert.deepEqual(second.map((item) => item.id), [1, 2, 3]);
});

test("a bounded number of batches is remembered, the latest", () => {
  const all = Array.from({ length: MOST_BATCHES + 5 }, (_, index) => batch(index));
  const kept = withBatches([], listed(...all));
  assert.deepEqual([kept.length, kept[0]?.id], [MOST_BATCHES, 5]);
});

test("each query has its batches", () => {
  const queries = byQuery([batch(1), batch(2, { uid: "other" }), batch(3)]);
  assert.deepEqual(queries.get("files")?.map((item) => item.id), [1, 3]);
});

test("rows a second and the lag of the watermark follow from a batch", () => {
  assert.equal(rateOf(batch(1, { "input-rows": 100 })), 200);
  assert.equal(rateOf(batch(1, { "input-rows": 100, end_to_end_duration: 0 })), 0);
  assert.equal(watermarkLag(batch(1)), null);
  assert.equal(watermarkLag(batch(1, { latest_ack_timestamp: 2000, watermark: "1970-01-01T00:00:01.000Z" })), 1000);
  assert.equal(watermarkLag(batch(1, { watermark: "1970-01-01T00:00:00.000Z" })), null);
});

test("what Spark reports of a batch is remembered once, and a query that has no batch yet not at all", () => {
  const query = (run: string, batch: number): QueryInfo => ({ "run-id": run, batch, "input-rows-per-second": batch }) as QueryInfo;
  const first = withFigures([], { queries: [query("a", 1), query("b", -1)] });
  const second = withFigures(first, { queries: [query("a", 1), query("b", 1)] });
  assert.deepEqual(first.map(({ batch }) => batch), [1]);
  assert.deepEqual(second.map((item) => item["run-id"]), ["a", "b"]);
  assert.equal(withFigures(second, { queries: [query("a", 1)] }), second);
});
