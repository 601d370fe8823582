// What pages read of the REST API, by path. The live connection says when something of it is outdated.
import { type Query, QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";

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

interface Options<T> {
  /** Read again after so many milliseconds, which may depend on what was read: for what no event reports. */
  readonly everyMs?: number | false | ((data: T | undefined) => number | false);
  readonly enabled?: boolean;
}

/** Reads a document. While it is read again, what it was is shown; never that of another path. */
export function useApi<T>(path: string, options: Options<T> = {}): UseQueryResult<T> {
  return useQuery<T>({
    queryKey: [path],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: intervalOf(options),
    enabled: options.enabled ?? true,
  });
}

/** Reads a text. */
export function useText(path: string, options: Options<string> = {}): UseQueryResult<string> {
  return useQuery<string>({
    queryKey: [path],
    queryFn: ({ signal }) => getText(path, signal),
    refetchInterval: intervalOf(options),
    enabled: options.enabled ?? true,
  });
}

function intervalOf<T>({ everyMs = false }: Options<T>): number | false | ((query: Query<T, Error, T, readonly unknown[]>) => number | false) {
  return typeof everyMs === "function" ? (query) => everyMs(query.state.data) : everyMs;
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
