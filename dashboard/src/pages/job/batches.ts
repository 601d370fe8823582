// The committed batches of a streaming job: the cluster lists the latest, this remembers those it has listed before.
import type { CheckpointsResponse, CompletedCheckpoint, QueriesResponse, QueryInfo } from "../../api/types.ts";

/** How many batches of a job are remembered. */
export const MOST_BATCHES = 240;

/** Returns the batches with those of a new response, oldest first. */
export function withBatches(known: readonly CompletedCheckpoint[], response: CheckpointsResponse): readonly CompletedCheckpoint[] {
  const byId = new Map(known.map((batch) => [batch.id, batch]));
  for (const batch of response.history) byId.set(batch.id, batch);
  return [...byId.values()].sort((one, other) => one.latest_ack_timestamp - other.latest_ack_timestamp || one.id - other.id).slice(-MOST_BATCHES);
}

/** Returns the batches of each query, by its uid. */
export function byQuery(batches: readonly CompletedCheckpoint[]): ReadonlyMap<string, readonly CompletedCheckpoint[]> {
  return Map.groupBy(batches, (batch) => batch.uid ?? "");
}

/** Returns what Spark has reported of the queries with what it reports now: once for each batch, in the order of arrival. */
export function withFigures(known: readonly QueryInfo[], response: QueriesResponse): readonly QueryInfo[] {
  const seen = new Set(known.map(batchKey));
  const fresh = response.queries.filter((query) => query.batch >= 0 && !seen.has(batchKey(query)));
  return fresh.length === 0 ? known : [...known, ...fresh].slice(-MOST_BATCHES);
}

function batchKey(query: QueryInfo): string {
  return `${query["run-id"]} ${query.batch}`;
}

/** Returns how many rows a batch has processed in a second. */
export function rateOf(batch: CompletedCheckpoint): number {
  return batch.end_to_end_duration <= 0 ? 0 : ((batch["input-rows"] ?? 0) * 1000) / batch.end_to_end_duration;
}

/** Returns how far the watermark is behind the end of a batch, in milliseconds; null where the query has none. */
export function watermarkLag(batch: CompletedCheckpoint): number | null {
  const watermark = Date.parse(batch.watermark ?? "");
  return Number.isNaN(watermark) || watermark <= 0 ? null : Math.max(0, batch.latest_ack_timestamp - watermark);
}
