import type { ReactNode } from "react";

import type { QueryInfo } from "../../api/types.ts";
import { elapsed, formatBytes, formatCount, formatDuration } from "../../formats/formats.ts";
import { Facts } from "../../parts/Facts.tsx";
import { Table } from "../../parts/Table.tsx";
import styles from "./QueryFigures.module.css";

/** What Spark reports of a query: its rates, where the time of its latest batch went, its sources and its state. */
export function QueryFigures({ query, now }: { readonly query: QueryInfo; readonly now: number }): ReactNode {
  const watermark = Date.parse(query.watermark);
  const late = query["late-rows"];
  const running = query["running-since"] ?? 0;
  const facts: readonly (readonly [string, ReactNode])[] = [
    ["Input", rate(query["input-rows-per-second"])],
    ["Processed", rate(query["processed-rows-per-second"])],
    ["Batch running for", running > 0 ? formatDuration(elapsed(running, now)) : ""],
    ["Backlog", query.backlog === null || query.backlog === undefined ? "" : `${formatCount(query.backlog)} rows`],
    ["Watermark behind", Number.isNaN(watermark) || watermark <= 0 ? "" : formatDuration(elapsed(watermark, now))],
    ["State", query["state-rows"] > 0 ? `${formatCount(query["state-rows"])} rows, ${formatBytes(query["state-bytes"])}` : ""],
    ["Dropped as late", late > 0 ? `${formatCount(late)} rows` : ""],
  ];
  return (
    <div className={styles["figures"]}>
      {query["falls-behind"] && (
        <p role="alert" className={styles["behind"]}>
          This query falls behind: for {formatDuration(query["behind-ms"])} its batches have taken longer than its trigger allows, or its
          backlog has grown.
        </p>
      )}
      {query.error && <p className={styles["behind"]}>{query.error}</p>}
      <Facts items={facts.filter(([, value]) => value !== "")} />
      <Durations query={query} />
      {query.sources.length > 0 && (
        <Table label={`Sources of ${query.name}`} columns={["Source", "Rows in the latest batch", "Input", "Processed", "Backlog"]}>
          {query.sources.map((source, index) => (
            <tr key={index}>
              <td>{source.description}</td>
              <td>{formatCount(source["input-rows"])}</td>
              <td>{rate(source["input-rows-per-second"])}</td>
              <td>{rate(source["processed-rows-per-second"])}</td>
              <td>{source.backlog === null || source.backlog === undefined ? "–" : formatCount(source.backlog)}</td>
            </tr>
          ))}
        </Table>
      )}
    </div>
  );
}

/** Where the time of the latest batch went, the longest part first. */
function Durations({ query }: { readonly query: QueryInfo }): ReactNode {
  const parts = Object.entries(query.durations)
    .filter(([name, ms]) => name !== "triggerExecution" && ms > 0)
    .sort(([, one], [, other]) => other - one);
  const longest = Math.max(1, ...parts.map(([, ms]) => ms));
  if (parts.length === 0) return null;
  return (
    <dl className={styles["durations"]} aria-label="Where the time of the latest batch went">
      {parts.map(([name, ms]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <progress value={ms} max={longest} aria-label={name} /> {formatDuration(ms)}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function rate(value: number): string {
  return `${formatCount(Math.round(value * 10) / 10)} rows/s`;
}
