// What a process has measured of itself while its page was open: the cluster has the present values only.
import type { Metric } from "../api/types.ts";

/** How many times are remembered. */
export const MOST_SAMPLES = 150;

/** The values of one time, by the id of the metric. A metric without a number is not there. */
export interface Sample {
  readonly at: number;
  readonly values: ReadonlyMap<string, number>;
}

/** Returns the samples with a new one, oldest first. */
export function withSample(known: readonly Sample[], metrics: readonly Metric[], at: number): readonly Sample[] {
  const values = new Map<string, number>();
  for (const { id, value } of metrics) {
    const number = value ? Number(value) : Number.NaN;
    if (Number.isFinite(number)) values.set(id, number);
  }
  return [...known, { at, values }].slice(-MOST_SAMPLES);
}

/** Returns the samples that have a value of a metric. */
export function samplesOf(samples: readonly Sample[], id: string): readonly { readonly at: number; readonly value: number }[] {
  return samples.flatMap(({ at, values }) => {
    const value = values.get(id);
    return value === undefined ? [] : [{ at, value }];
  });
}
