// One stream of events for a tab: it is opened again by itself, and says when nothing was heard for too long.
import { ApiError, send } from "../api/http.ts";
import { parseEvents } from "../api/server_sent_events.ts";
import type { Job, LiveEvent } from "./jobs.ts";

/** The cluster sends something every 10 s at least. */
const SILENCE_MS = 15_000;
const SHORTEST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;

export interface LiveListener {
  readonly onEvent: (event: LiveEvent) => void;
  /** JobManagers, TaskManagers, slots or the queue have changed. */
  readonly onCluster: () => void;
  /** The cluster wants a credential, or another one. */
  readonly onRefused: (error: ApiError) => void;
}

/** Follows the events until the signal is aborted, or the cluster refuses the credential. */
export async function follow(listener: LiveListener, signal: AbortSignal): Promise<void> {
  let pause = SHORTEST_PAUSE_MS;
  let lastHeard = Date.now();
  while (!signal.aborted) {
    try {
      await readStream(listener, signal, () => {
        lastHeard = Date.now();
        pause = SHORTEST_PAUSE_MS;
      });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        listener.onRefused(error);
        return;
      }
    }
    if (signal.aborted) return;
    listener.onEvent({ kind: "lost", lastHeard });
    await sleep(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

async function readStream(listener: LiveListener, signal: AbortSignal, onHeard: () => void): Promise<void> {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await send("/events?cluster=true", { signal: AbortSignal.any([signal, silence.signal]) });
    if (response.body === null) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    listener.onEvent({ kind: "opened" });
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onHeard();
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const parsed = parseEvents(rest + value);
      rest = parsed.rest;
      report(parsed.events, listener);
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** Reports the events of a piece: the jobs together, since a cluster with many of them sends many at once. */
function report(events: ReturnType<typeof parseEvents>["events"], listener: LiveListener): void {
  let jobs: Job[] = [];
  const reportJobs = (): void => {
    if (jobs.length > 0) listener.onEvent({ kind: "changed", jobs, now: Date.now() });
    jobs = [];
  };
  for (const { event, data } of events) {
    if (event === "cluster") listener.onCluster();
    else if (event === "job") jobs.push(JSON.parse(data) as Job);
    else if (event === "listed") {
      reportJobs();
      listener.onEvent({ kind: "listed" });
    }
  }
  reportJobs();
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
