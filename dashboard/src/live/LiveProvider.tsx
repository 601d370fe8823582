// Gives all pages the jobs of the one live connection of the tab.
import { createContext, type ReactNode, useContext, useEffect, useReducer, useState } from "react";

import type { ApiError } from "../api/http.ts";
import { queryClient, refresh, refreshCluster } from "../api/queries.ts";
import { follow } from "./connection.ts";
import { clusterTime, type LiveEvent, type LiveJobs, NOTHING_KNOWN, reduceLive } from "./jobs.ts";
import { subscriptions } from "./subscriptions.ts";

const LiveContext = createContext<LiveJobs>(NOTHING_KNOWN);
const REFRESH_MS = 500;
const TICK_MS = 1000;

/** Follows the cluster. `onRefused`: the cluster wants a credential. */
export function LiveProvider(props: { readonly onRefused: (error: ApiError) => void; readonly children: ReactNode }): ReactNode {
  const [state, dispatch] = useReducer(reduceLive, NOTHING_KNOWN);
  const { onRefused } = props;
  useEffect(() => {
    const end = new AbortController();
    const refresher = new Refresher();
    let wasLost = false;
    const onEvent = (event: LiveEvent): void => {
      dispatch(event);
      if (event.kind === "changed") refresher.add(event.jobs.map((job) => job.jid));
      if (event.kind === "lost") wasLost = true;
      if (event.kind !== "opened" || !wasLost) return;
      wasLost = false;
      void queryClient.invalidateQueries(); // what happened in between, no event has reported
    };
    void follow({ onEvent, onRefused, onCluster: refreshCluster }, subscriptions, end.signal);
    return () => {
      end.abort();
      refresher.stop();
    };
  }, [onRefused]);
  return <LiveContext value={state}>{props.children}</LiveContext>;
}

/** Returns what is known of the jobs. */
export function useLive(): LiveJobs {
  return useContext(LiveContext);
}

/** Returns the time of the cluster's clock, updated each second while the connection lives. */
export function useClusterTime(): number {
  const live = useLive();
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), TICK_MS);
    return () => clearInterval(timer);
  }, []);
  return clusterTime(live, now);
}

/** Has what is shown of changed jobs read again: at once, then once for all that change within a short time. */
class Refresher {
  private readonly waiting = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  add(jobs: readonly string[]): void {
    for (const job of jobs) this.waiting.add(job);
    if (this.timer === undefined) this.read();
  }

  private read(): void {
    refresh(new Set(this.waiting));
    this.waiting.clear();
    this.timer = setTimeout(() => {
      this.timer = undefined;
      if (this.waiting.size > 0) this.read();
    }, REFRESH_MS);
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}
