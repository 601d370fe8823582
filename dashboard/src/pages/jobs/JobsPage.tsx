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
import { nextSort, orderOf, sorted } from "./sorting.ts";

const PAGE_SIZE = 50;
const TITLES: Readonly<Record<SortColumn, string>> = {
  name: "Job",
  state: "State",
  steps: "Steps",
  started: "Started",
  duration: "Duration",
  user: "Submitted by",
};

/** The jobs of a filter, page by page as the server divides them, newest first; a page can be sorted by its columns. */
export function JobsPage({ filter }: { readonly filter: JobFilter }): ReactNode {
  const { jobs: live } = useLive();
  const now = useClusterTime();
  const address = writeAddress({ page: "jobs", filter });
  // The time of which the filter counts back is that of its choice: a list that moves by itself cannot be read.
  const path = useMemo(() => listingPath(filter, Date.now(), PAGE_SIZE), [address]);
  const query = useApi<JobsOverviewResponse>(path);
  const complete = filter.after === "" && !query.data?.next;
  return (
    <>
      <h1>Jobs</h1>
      <FilterForm key={address} filter={filter} />
      <Section title={titleOf(filter)} aside={<Order filter={filter} complete={complete} />}>
        <Answer query={query}>
          {({ jobs, next }) => (
            <>
              {jobs.length === 0 ? (
                <Empty>{next ? "None of these jobs fits the filter; older ones may." : "No job fits the filter."}</Empty>
              ) : (
                <JobRows
                  label="Jobs"
                  jobs={sorted(jobs.map((job) => live.get(job.jid) ?? job), filter.sort, now)}
                  now={now}
                  sorting={sortingOf(filter)}
                />
              )}
              <nav className={styles["pages"]} aria-label="Pages of the list">
                {filter.after !== "" && (
                  <a href={writeAddress({ page: "jobs", filter: { ...filter, after: "" } })}>Newest jobs</a>
                )}
                {next && <a href={writeAddress({ page: "jobs", filter: { ...filter, after: next } })}>Older jobs</a>}
              </nav>
            </>
          )}
        </Answer>
      </Section>
    </>
  );
}

function titleOf(filter: JobFilter): string {
  if (filter.after !== "") return "Older jobs";
  return filter.sort === "" ? "Newest first" : "Newest jobs";
}

/** By what the page is sorted, and that other pages are not. */
function Order({ filter, complete }: { readonly filter: JobFilter; readonly complete: boolean }): ReactNode {
  const order = orderOf(filter.sort);
  if (order === null) return null;
  return (
    <span>
      {complete ? "Sorted by" : "Only the jobs of this page are sorted, by"} {order.column === "started" ? "start" : order.column}.{" "}
      <a href={writeAddress({ page: "jobs", filter: { ...filter, sort: "" } })}>Newest first</a>
    </span>
  );
}

function sortingOf(filter: JobFilter): Sorting {
  const order = orderOf(filter.sort);
  const hrefOf = (column: SortColumn): string => writeAddress({ page: "jobs", filter: { ...filter, sort: nextSort(filter.sort, column) } });
  return {
    column: order === null ? "" : TITLES[order.column],
    descending: order?.descending ?? false,
    hrefs: new Map(SORT_COLUMNS.map((column) => [TITLES[column], hrefOf(column)])),
  };
}
