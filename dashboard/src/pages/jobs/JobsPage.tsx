import { type ReactNode, useMemo } from "react";

import { type JobFilter, listingPath, writeAddress } from "../../address/address.ts";
import { useApi } from "../../api/queries.ts";
import type { JobsOverviewResponse } from "../../api/types.ts";
import { useClusterTime, useLive } from "../../live/LiveProvider.tsx";
import { Answer } from "../../parts/Answer.tsx";
import { JobRows } from "../../parts/JobRows.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { FilterForm } from "./FilterForm.tsx";
import styles from "./JobsPage.module.css";

const PAGE_SIZE = 50;

/** The jobs of a filter, page by page as the server divides them, newest first. */
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
      <Section title={filter.after === "" ? "Newest first" : "Older jobs"}>
        <Answer query={query}>
          {({ jobs, next }) => (
            <>
              {jobs.length === 0 ? (
                <Empty>{next ? "None of these jobs fits the filter; older ones may." : "No job fits the filter."}</Empty>
              ) : (
                <JobRows label="Jobs" jobs={jobs.map((job) => live.get(job.jid) ?? job)} now={now} />
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
