// The order of the jobs of one page. The server divides the list into pages, newest first: another order is that of a page.
import type { SortColumn } from "../../address/address.ts";
import { durationOf, type Job, shownState } from "../../live/jobs.ts";

/** Columns of which the largest value is wanted first. */
const LARGEST_FIRST: ReadonlySet<SortColumn> = new Set<SortColumn>(["steps", "started", "duration"]);

/** Returns the column of an order, and whether the largest value comes first; null: there is no order. */
export function orderOf(sort: string): { readonly column: SortColumn; readonly descending: boolean } | null {
  if (sort === "") return null;
  const descending = sort.startsWith("-");
  return { column: (descending ? sort.slice(1) : sort) as SortColumn, descending };
}

/** Returns the order that a click on a column asks for: what is wanted first, then the reverse. */
export function nextSort(sort: string, column: SortColumn): string {
  const first = LARGEST_FIRST.has(column) ? `-${column}` : column;
  return sort === first ? (first === column ? `-${column}` : column) : first;
}

/** Returns the jobs in an order; those that are equal in it stay as they are. `now` is a time of the cluster's clock. */
export function sorted(jobs: readonly Job[], sort: string, now: number): readonly Job[] {
  const order = orderOf(sort);
  if (order === null) return jobs;
  const value = VALUES[order.column];
  const sign = order.descending ? -1 : 1;
  return jobs.toSorted((one, other) => sign * compared(value(one, now), value(other, now)));
}

const collator = new Intl.Collator(undefined, { numeric: true }); // `job 9` is before `job 10`

const VALUES: Readonly<Record<SortColumn, (job: Job, now: number) => string | number>> = {
  name: (job) => job.name,
  state: shownState,
  steps: (job) => job.tasks.finished / Math.max(1, job.tasks.total),
  started: (job) => job["start-time"],
  duration: durationOf,
  user: (job) => job["submitted-by"] ?? "",
};

function compared(one: string | number, other: string | number): number {
  if (typeof one === "string" && typeof other === "string") return collator.compare(one, other);
  return Number(one) - Number(other);
}
