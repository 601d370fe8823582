// The order of the list, which the server sorts over all its pages.
import type { SortColumn } from "../../address/address.ts";

/** Columns of which the largest value is wanted first. */
const LARGEST_FIRST: ReadonlySet<SortColumn> = new Set<SortColumn>(["start", "end", "duration"]);

/** The order of the server where none is asked for. */
const NEWEST_FIRST = "-start";

/** Returns the column of an order, and whether the largest value comes first. */
export function orderOf(sort: string): { readonly column: SortColumn; readonly descending: boolean } {
  const order = sort === "" ? NEWEST_FIRST : sort;
  const descending = order.startsWith("-");
  return { column: (descending ? order.slice(1) : order) as SortColumn, descending };
}

/** Returns the order that a click on a column asks for: what is wanted first, then the reverse. */
export function nextSort(sort: string, column: SortColumn): string {
  const first = LARGEST_FIRST.has(column) ? `-${column}` : column;
  const current = sort === "" ? NEWEST_FIRST : sort;
  const next = current === first ? (first === column ? `-${column}` : column) : first;
  return next === NEWEST_FIRST ? "" : next;
}
