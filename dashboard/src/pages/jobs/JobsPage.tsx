import { type ReactNode, useMemo } from "react";

import { type JobFilter, listingPath, SORT_COLUMNS, type SortColumn, writeAddress } from "../../address/address.ts";
import { useApi } from "../../api/queries.ts";
import type { JobsOverviewResponse } from "../../api/types.ts";
import { useClusterTime, useLive } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { JobRows } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import type { Sorting } from "../../parts/Table.tsx";
import { FilterForm } from "./FilterForm.tsx";
import styles from "./JobsPage.module.css";
import { nextSort, orderOf } from "./sorting.ts";

const PAGE_SIZE = 50;
const TITLES: Readonly<Record<SortColumn, string>> = {
  name: "Job",
  start: "Started",
  end: "Ended",
  duration: "Duration",
};

/** The jobs of a filter, page by page; the server filters, sorts and divides them. */
export function JobsPage({ filter }: { readonly filter: JobFilter }): ReactNode {
  const { jobs: live } = useLive();
  const now = useClusterTime();
  const address = writeAddress({ page: "jobs", filter });
  // The time of which the filter counts back is that of its choice: a list that moves by itself cannot be read.
  const path = useMemo(() => listingPath(filter, Date.now(), PAGE_SIZE), [address]);
  const query = useApi<JobsOverviewResponse>(path);
  return (
    <>
      <h1>Jobs</h1>
      <FilterForm key={address} filter={filter} />
      <Section title={titleOf(filter)}>
        <Answer query={query}>
          {({ jobs, next }) => (
            <>
              {jobs.length === 0 ? (
                <Empty>{next ? "None of these jobs fits the filter; later ones of the list may." : "No job fits the filter."}</Empty>
              ) : (
                <JobRows
                  label="Jobs"
                  jobs={jobs.map((job) => live.get(job.jid) ?? job)}
                  now={now}
                  withEnd
                  sorting={sortingOf(filter)}
                />
              )}
              <nav className={styles["pages"]} aria-label="Pages of the list">
                {filter.after !== "" && (
                  <a href={writeAddress({ page: "jobs", filter: { ...filter, after: "" } })}>First page</a>
                )}
                {next && <a href={writeAddress({ page: "jobs", filter: { ...filter, after: next } })}>Next page</a>}
              </nav>
            </>
          )}
        </Answer>
      </Section>
    </>
  );
}

const ORDERS: Readonly<Record<SortColumn, readonly [ascending: string, descending: string]>> = {
  name: ["By name", "By name, from the last"],
  start: ["Oldest first", "Newest first"],
  end: ["First ended first", "Last ended first"],
  duration: ["Shortest first", "Longest first"],
};

function titleOf(filter: JobFilter): string {
  const { column, descending } = orderOf(filter.sort);
  return `${ORDERS[column][descending ? 1 : 0]}${filter.after === "" ? "" : ", continued"}`;
}

function sortingOf(filter: JobFilter): Sorting {
  const order = orderOf(filter.sort);
  const hrefOf = (column: SortColumn): string => writeAddress({ page: "jobs", filter: { ...filter, after: "", sort: nextSort(filter.sort, column) } });
  return {
    column: TITLES[order.column],
    descending: order.descending,
    hrefs: new Map(SORT_COLUMNS.map((column) => [TITLES[column], hrefOf(column)])),
  };
}
