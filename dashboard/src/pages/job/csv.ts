// A result as CSV, as RFC 4180 describes it.
import type { ResultTable } from "../../api/types.ts";

/** Returns the rows of a result as CSV, with its columns' names in the first line. */
export function toCsv(table: Pick<ResultTable, "columns" | "rows">): string {
  const lines = [(table.columns ?? []).map((column) => column.name), ...(table.rows ?? [])];
  return lines.map((line) => `${line.map((value) => field(cellText(value))).join(",")}\r\n`).join("");
}

/** Returns a value of a result as text: nested ones as JSON. */
export function cellText(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function field(text: string): string {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
