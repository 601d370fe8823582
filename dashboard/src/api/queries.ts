// What pages read of the REST API, by path. The live connection says when something of it is outdated.
import { QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect } from "react";

import { type FollowedDocument, subscriptions } from "../live/subscriptions.ts";
import { ApiError, get, getText } from "./http.ts";

const RETRIED = 3;

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: Number.POSITIVE_INFINITY, // the live connection says what has changed
      refetchOnWindowFocus: false,
      retry: (failures, error) => failures < RETRIED && (!(error instanceof ApiError) || error.status === 503),
      retryDelay: (attempt) => 500 * 2 ** attempt,
      networkMode: "always", // a cluster on this machine is there without a network, too
    },
  },
});

interface Options {
  /** Follow it: the stream of events has it whenever it has changed. */
  readonly follow?: boolean;
  /** Read it again after so many milliseconds: for what the leader, from which events come, does not know. */
  readonly everyMs?: number;
  readonly enabled?: boolean;
}

/** Reads a document. While it is read again, what it was is shown; never that of another path. */
export function useApi<T>(path: string, { follow = false, everyMs, enabled = true }: Options = {}): UseQueryResult<T> {
  useEffect(
    () => (follow ? subscriptions.add({ key: path, path: () => path, onDocument: (document) => void replace(path, document) }) : undefined),
    [path, follow],
  );
  return useQuery<T>({
    queryKey: [path],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: everyMs ?? false,
    enabled,
  });
}

/** Sets a document to what the stream has sent. What is being read may be older, and is not waited for. */
async function replace(path: string, { status, body }: FollowedDocument): Promise<void> {
  if (status === 200) {
    await queryClient.cancelQueries({ queryKey: [path], exact: true });
    queryClient.setQueryData([path], body);
  } else await queryClient.invalidateQueries({ queryKey: [path], exact: true }); // reads the problem
}

/** Reads a text. */
export function useText(path: string): UseQueryResult<string> {
  return useQuery<string>({ queryKey: [path], queryFn: ({ signal }) => getText(path, signal) });
}

/** Whether a path shows something of these jobs, or counts jobs. */
export function concerns(path: string, jobs: ReadonlySet<string>): boolean {
  const [, first, second = "", third = ""] = path.split(/[/?]/);
  if (first === "taskmanagers") return third === ""; // metrics are read at regular times, logs and the like when they are opened
  if (first === "overview" || first === "resources") return true;
  return first === "jobs" && (second === "overview" || jobs.has(second));
}

/** Whether a path shows JobManagers, TaskManagers, slots or the queue. */
export function concernsCluster(path: string): boolean {
  const [, first, , third = ""] = path.split(/[/?]/);
  if (first === "taskmanagers") return third === "";
  return first === "overview" || first === "resources" || first === "jobmanagers";
}

/** Has everything read again that shows JobManagers, TaskManagers, slots or the queue. */
export function refreshCluster(): void {
  void queryClient.invalidateQueries({ predicate: ({ queryKey: [path] }) => concernsCluster(String(path)) });
}

/** Has everything read again that shows something of these jobs. */
export function refresh(jobs: ReadonlySet<string>): void {
  void queryClient.invalidateQueries({ predicate: ({ queryKey: [path] }) => concerns(String(path), jobs) });
}
