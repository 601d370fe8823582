// Requests to the REST API of the JobManager that served the page.

/** A response that is no success, with the sentences of the cluster. */
export class ApiError extends Error {
  readonly status: number;

  constructor(status: number, sentences: readonly string[]) {
    super(sentences.join("\n") || `The cluster answered with the status ${status}.`);
    this.name = "ApiError";
    this.status = status;
  }
}

const TOKEN = "flintlock-token";

/** The token of this tab, if the reader has entered one; a browser that is logged in by a link has a cookie instead. */
export const token = {
  get: (): string | null => sessionStorage.getItem(TOKEN),
  set: (value: string): void => sessionStorage.setItem(TOKEN, value),
  remove: (): void => sessionStorage.removeItem(TOKEN),
};

let term: string | null = null;
const termListeners = new Set<() => void>();

/** The term of the leader that made the latest response; a standby passes it on. */
export const leaderTerm = {
  get: (): string | null => term,
  subscribe: (onChange: () => void): (() => void) => {
    termListeners.add(onChange);
    return () => termListeners.delete(onChange);
  },
};

function noteTerm(response: Response): void {
  const named = response.headers.get("Flintlock-Leader-Epoch");
  if (named === null || named === term) return;
  term = named;
  for (const onChange of termListeners) onChange();
}

let admitted = false;
const refusalListeners = new Set<(error: ApiError) => void>();

/** That the cluster refuses the credential of this tab, and whether it had accepted one before. */
export const refusals = {
  subscribe: (onRefused: (error: ApiError) => void): (() => void) => {
    refusalListeners.add(onRefused);
    return () => refusalListeners.delete(onRefused);
  },
  /** Whether the cluster has answered a request of this tab since it was loaded: if it refuses one now, access has ended. */
  afterAccess: (): boolean => admitted,
};

/** Sends a request. Throws ApiError for every response that is no success, TypeError where there is none. */
export async function send(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const credential = token.get();
  if (credential !== null) headers.set("Authorization", `Bearer ${credential}`);
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  noteTerm(response);
  if (response.ok) {
    admitted = true;
    return response;
  }
  const error = new ApiError(response.status, await sentencesOf(response));
  if (response.status === 401) for (const onRefused of refusalListeners) onRefused(error);
  throw error;
}

/** Returns what a GET request answers. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send(path, signal === undefined ? {} : { signal });
  return (await response.json()) as T;
}

/** Returns what a GET request answers, as text. */
export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  return (await send(path, signal === undefined ? {} : { signal })).text();
}

/** Returns an id for a request, by which the cluster knows it again: 32 hex digits. */
export function newRequestId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sentencesOf(response: Response): Promise<readonly string[]> {
  try {
    const { errors } = (await response.json()) as { errors?: unknown };
    return Array.isArray(errors) ? errors.map(String) : [];
  } catch {
    return [];
  }
}
