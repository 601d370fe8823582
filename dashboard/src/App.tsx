import { lazy, type ReactNode, Suspense, useCallback, useEffect, useState } from "react";

import type { Address } from "./address/address.ts";
import { useAddress } from "./address/useAddress.ts";
import { type ApiError, refusals, token } from "./api/http.ts";
import { queryClient } from "./api/queries.ts";
import styles from "./App.module.css";
import { ConnectionState } from "./ConnectionState.tsx";
import { LiveProvider } from "./live/LiveProvider.tsx";
import { JobPage } from "./pages/job/JobPage.tsx";
import { JobManagerPage } from "./pages/jobmanagers/JobManagerPage.tsx";
import { JobManagersPage } from "./pages/jobmanagers/JobManagersPage.tsx";
import { JobsPage } from "./pages/jobs/JobsPage.tsx";
import { LoginPage } from "./pages/login/LoginPage.tsx";
import { OverviewPage } from "./pages/overview/OverviewPage.tsx";
import { QuarantinePage } from "./pages/quarantine/QuarantinePage.tsx";
import { TaskManagerPage } from "./pages/taskmanagers/TaskManagerPage.tsx";
import { TaskManagersPage } from "./pages/taskmanagers/TaskManagersPage.tsx";

// Has a reader of YAML, which no other page needs.
const NewJobPage = lazy(async () => ({ default: (await import("./pages/newjob/NewJobPage.tsx")).NewJobPage }));

const PAGES = [
  ["#/", "Overview", ["overview"]],
  ["#/jobs", "Jobs", ["jobs", "job", "quarantine"]],
  ["#/new", "New job", ["new"]],
  ["#/taskmanagers", "TaskManagers", ["taskmanagers", "taskmanager"]],
  ["#/jobmanagers", "JobManagers", ["jobmanagers", "jobmanager"]],
] as const;

/** The dashboard: its frame, and the page that the address names; a page for the credential if the cluster wants one. */
export function App(): ReactNode {
  const [refused, setRefused] = useState<ApiError | null>(null);
  const address = useAddress();
  const onRefused = useCallback((error: ApiError) => setRefused(error), []);
  const tried = useCallback((credential: string) => {
    token.set(credential);
    queryClient.clear();
    setRefused(null);
  }, []);
  useEffect(() => refusals.subscribe(onRefused), [onRefused]);
  useTitle(address);
  if (refused !== null) return <LoginPage refused={refused} onToken={tried} />;
  return (
    <LiveProvider onRefused={onRefused}>
      <a className={styles["skip"]} href={location.hash || "#/"} onClick={focusMain}>
        Skip to the content
      </a>
      <header className={styles["head"]}>
        <strong className={styles["name"]}>Flintlock</strong>
        <nav aria-label="Pages">
          {PAGES.map(([href, title, pages]) => (
            <a key={href} href={href} aria-current={(pages as readonly string[]).includes(address.page) ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <ConnectionState />
      </header>
      <main id="main" tabIndex={-1} className={styles["main"]}>
        <Page address={address} />
      </main>
    </LiveProvider>
  );
}

function Page({ address }: { readonly address: Address }): ReactNode {
  switch (address.page) {
    case "overview":
      return <OverviewPage />;
    case "new":
      return (
        <Suspense fallback={<p>Reading …</p>}>
          <NewJobPage />
        </Suspense>
      );
    case "jobs":
      return <JobsPage filter={address.filter} />;
    case "job":
      return <JobPage key={address.id} id={address.id} tab={address.tab} step={address.step} />;
    case "taskmanagers":
      return <TaskManagersPage />;
    case "taskmanager":
      return <TaskManagerPage key={address.id} id={address.id} />;
    case "jobmanagers":
      return <JobManagersPage />;
    case "quarantine":
      return <QuarantinePage />;
    case "jobmanager":
      return <JobManagerPage />;
    case "unknown":
      return (
        <>
          <h1>There is no such page</h1>
          <p>
            The address leads nowhere. <a href="#/">The overview</a> has links to everything.
          </p>
        </>
      );
  }
}

function useTitle(address: Address): void {
  const title = address.page === "job" ? address.id.slice(0, 8) : address.page;
  useEffect(() => {
    document.title = `${title} – Flintlock`;
  }, [title]);
}

function focusMain(event: { preventDefault: () => void }): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
