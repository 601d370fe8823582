// One stream of events for a tab: it is opened again by itself, and says when nothing was heard for too long.
import { ApiError, send } from "../api/http.ts";
import { parseEvents } from "../api/server_sent_events.ts";
import type { Job, LiveEvent } from "./jobs.ts";
import type { FollowedDocument, Subscriptions } from "./subscriptions.ts";

/** The cluster sends something every 10 s at least. */
const SILENCE_MS = 15_000;
const SHORTEST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;
/** A page that is left and one that is opened change what is followed together. */
const CHANGE_MS = 20;

export interface LiveListener {
  readonly onEvent: (event: LiveEvent) => void;
  /** JobManagers, TaskManagers, slots or the queue have changed. */
  readonly onCluster: () => void;
  /** The cluster wants a credential, or another one. */
  readonly onRefused: (error: ApiError) => void;
}

/** Follows the events until the signal is aborted, or the cluster refuses the credential. */
export async function follow(listener: LiveListener, subscriptions: Subscriptions, signal: AbortSignal): Promise<void> {
  const stream = new Stream(listener, subscriptions);
  let pause = SHORTEST_PAUSE_MS;
  while (!signal.aborted) {
    const heardBefore = stream.lastHeard;
    try {
      if ((await stream.read(signal)) === "outdated") continue; // a page follows something else
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        listener.onRefused(error);
        return;
      }
    }
    if (signal.aborted) return;
    if (stream.lastHeard !== heardBefore) pause = SHORTEST_PAUSE_MS;
    listener.onEvent({ kind: "lost", lastHeard: stream.lastHeard });
    await sleep(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

class Stream {
  lastHeard = Date.now();
  private readonly listener: LiveListener;
  private readonly subscriptions: Subscriptions;
  private lastId = "";
  /** By path: the documents that the stream was opened with. */
  private followed: ReadonlyMap<string, string> = new Map();

  constructor(listener: LiveListener, subscriptions: Subscriptions) {
    this.listener = listener;
    this.subscriptions = subscriptions;
  }

  /** Reads one stream to its end, or until another one is to be opened. Throws ApiError where it is refused. */
  async read(signal: AbortSignal): Promise<"ended" | "outdated"> {
    const outdated = new AbortController();
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    this.followed = this.subscriptions.paths();
    const stopWatching = this.watch(outdated);
    try {
      const headers: Record<string, string> = this.lastId === "" ? {} : { "Last-Event-ID": this.lastId };
      const follow = [...this.followed.keys()].map((path) => `&follow=${encodeURIComponent(path)}`).join("");
      const response = await send(`/events?cluster=true${follow}`, { headers, signal: AbortSignal.any([signal, silence.signal, outdated.signal]) });
      if (response.body === null) return "ended";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      this.listener.onEvent({ kind: "opened" });
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "ended";
        this.lastHeard = Date.now();
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const parsed = parseEvents(rest + value);
        rest = parsed.rest;
        this.report(parsed.events);
      }
    } catch (error) {
      if (outdated.signal.aborted && !signal.aborted) return "outdated";
      throw error;
    } finally {
      stopWatching();
      clearTimeout(timer);
      silence.abort();
    }
  }

  /** Aborts the stream when pages follow other documents than it was opened with. */
  private watch(outdated: AbortController): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const compare = (): void => {
      timer = undefined;
      const [now, opened] = [this.subscriptions.keys(), new Set(this.followed.values())];
      if (now.size !== opened.size || [...now].some((key) => !opened.has(key))) outdated.abort();
    };
    const end = this.subscriptions.subscribe(() => {
      timer ??= setTimeout(compare, CHANGE_MS);
    });
    return () => {
      clearTimeout(timer);
      end();
    };
  }

  /** Reports the events of a piece: the jobs together, since a cluster with many of them sends many at once. */
  private report(events: ReturnType<typeof parseEvents>["events"]): void {
    let jobs: Job[] = [];
    const reportJobs = (): void => {
      if (jobs.length > 0) this.listener.onEvent({ kind: "changed", jobs, now: Date.now() });
      jobs = [];
    };
    for (const { event, data, id } of events) {
      if (event === "cluster") this.listener.onCluster();
      else if (event === "job") jobs.push(JSON.parse(data) as Job);
      else if (event === "document") this.deliver(JSON.parse(data) as FollowedDocument);
      else if (event === "refused") throw new ApiError(401, (JSON.parse(data) as { errors: string[] }).errors);
      else if (event === "listed" || event === "resumed") {
        reportJobs();
        this.listener.onEvent({ kind: event });
      }
      if (id !== undefined) {
        reportJobs();
        this.lastId = id;
      }
    }
    reportJobs();
  }

  private deliver(document: FollowedDocument): void {
    const key = this.followed.get(document.path);
    if (key !== undefined) this.subscriptions.deliver(key, document);
  }
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
