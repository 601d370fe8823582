// The address of a page, behind the `#`: what is shown, and by which filter. A link to it shows the same to everyone.

export const JOB_TABS = ["graph", "timeline", "failures", "logs", "results", "streaming", "checkpoints", "configuration"] as const;
export type JobTab = (typeof JOB_TABS)[number];

export const JOB_STATES = [
  "WAITING",
  "INITIALIZING",
  "CREATED",
  "RUNNING",
  "FAILING",
  "FAILED",
  "CANCELLING",
  "CANCELED",
  "FINISHED",
  "RESTARTING",
  "SUSPENDED",
  "RECONCILING",
] as const;

/** The columns by which the list can be sorted, as the server names them: those of which it has the order of all jobs. */
export const SORT_COLUMNS = ["name", "start", "end", "duration"] as const;
export type SortColumn = (typeof SORT_COLUMNS)[number];

/** Which jobs a list shows, and in which order. Empty: there is no such condition. */
export interface JobFilter {
  readonly name: string;
  readonly states: readonly string[];
  readonly label: string;
  /** Who has submitted them. */
  readonly user: string;
  /** How long ago jobs may have started, such as `1h`. */
  readonly within: string;
  /** Where the page of the list begins: the `next` of the page before it. */
  readonly after: string;
  /** The column by which the list is sorted, with `-` before it from the largest to the smallest; empty: newest first. */
  readonly sort: string;
}

export const ALL_JOBS: JobFilter = { name: "", states: [], label: "", user: "", within: "", after: "", sort: "" };

/** The choices of how long ago jobs may have started, with their milliseconds. */
export const PERIODS: Readonly<Record<string, number>> = {
  "15m": 900_000,
  "1h": 3_600_000,
  "24h": 86_400_000,
  "7d": 604_800_000,
};

export type Address =
  | { readonly page: "overview" }
  | { readonly page: "new" }
  | { readonly page: "jobs"; readonly filter: JobFilter }
  | { readonly page: "job"; readonly id: string; readonly tab: JobTab; readonly step: string }
  | { readonly page: "taskmanagers" }
  | { readonly page: "taskmanager"; readonly id: string }
  | { readonly page: "jobmanagers" }
  | { readonly page: "jobmanager" }
  | { readonly page: "quarantine" }
  | { readonly page: "unknown" };

/** Returns what an address, with or without its `#`, shows. */
export function readAddress(hash: string): Address {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const values = new URLSearchParams(query);
  const parts = path.split("/").filter((part) => part !== "").map(decoded);
  const [first, second = "", third = "graph"] = parts;
  if (first === undefined) return { page: "overview" };
  if (first === "new" && parts.length === 1) return { page: "new" };
  if (first === "jobs" && parts.length === 1) return { page: "jobs", filter: readFilter(values) };
  if (first === "jobs" && parts.length <= 3 && /^[0-9a-f]{32}$/.test(second)) {
    const tab = JOB_TABS.find((name) => name === third);
    if (tab !== undefined) return { page: "job", id: second, tab, step: values.get("step") ?? "" };
  }
  if (first === "taskmanagers" && parts.length === 1) return { page: "taskmanagers" };
  if (first === "taskmanagers" && parts.length === 2) return { page: "taskmanager", id: second };
  if ((first === "jobmanagers" || first === "jobmanager" || first === "quarantine") && parts.length === 1) return { page: first };
  return { page: "unknown" };
}

/** Returns the address of what is shown, with its `#`. `readAddress` returns the same again. */
export function writeAddress(address: Address): string {
  switch (address.page) {
    case "jobs":
      return `#/jobs${queryText(filterValues(address.filter))}`;
    case "job":
      return `#/jobs/${address.id}/${address.tab}${queryText({ step: address.step })}`;
    case "new":
      return "#/new";
    case "taskmanagers":
      return "#/taskmanagers";
    case "taskmanager":
      return `#/taskmanagers/${encodeURIComponent(address.id)}`;
    case "jobmanagers":
    case "jobmanager":
    case "quarantine":
      return `#/${address.page}`;
    default:
      return "#/";
  }
}

/** Returns the path of the REST API that has the jobs of a filter. */
export function listingPath(filter: JobFilter, now: number, limit: number): string {
  const period = PERIODS[filter.within];
  return `/jobs/overview${queryText({
    limit: `${limit}`,
    name: filter.name === "" || filter.name.includes("*") ? filter.name : `*${filter.name}*`,
    state: filter.states.join(","),
    label: filter.label,
    "submitted-by": filter.user,
    // By whole minutes, so that a page that is shown again has the same path.
    since: period === undefined ? "" : `${Math.floor((now - period) / 60_000) * 60_000}`,
    after: filter.after,
    sort: filter.sort,
  })}`;
}

function readFilter(values: URLSearchParams): JobFilter {
  const within = values.get("within") ?? "";
  return {
    name: values.get("name") ?? "",
    states: (values.get("state") ?? "").split(",").filter((state) => (JOB_STATES as readonly string[]).includes(state)),
    label: values.get("label") ?? "",
    user: values.get("user") ?? "",
    within: Object.hasOwn(PERIODS, within) ? within : "",
    after: values.get("after") ?? "",
    sort: (SORT_COLUMNS as readonly string[]).includes((values.get("sort") ?? "").replace(/^-/, "")) ? (values.get("sort") ?? "") : "",
  };
}

function filterValues(filter: JobFilter): Record<string, string> {
  const { name, states, label, user, within, after, sort } = filter;
  return { name, state: states.join(","), label, user, within, after, sort };
}

function queryText(values: Readonly<Record<string, string>>): string {
  const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "")).toString();
  return text === "" ? "" : `?${text}`;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
