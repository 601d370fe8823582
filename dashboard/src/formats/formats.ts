// How numbers and times are written. Times are milliseconds since 1970; a time below 0 is one that has not come.

const NONE = "–";

/** Returns the milliseconds from one time to another; 0 if the clock was set back in between. */
export function elapsed(from: number, to: number): number {
  return Math.max(0, to - from);
}

/** Returns a duration in its two largest units: `350 ms`, `4.2 s`, `3 min 5 s`, `2 h 1 min`, `3 d 4 h`. */
export function formatDuration(ms: number): string {
  if (!Number.isFinite(ms) || ms < 0) return NONE;
  if (ms < 1000) return `${Math.floor(ms)} ms`;
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const SIZES = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** Returns a number of bytes with three digits at least: `512 bytes`, `1.50 KiB`, `12.3 MiB`. */
export function formatBytes(bytes: number): string {
  if (!Number.isFinite(bytes) || bytes < 0) return NONE;
  let value = bytes;
  let unit = 0;
  // 1023.95 of a unit would be written as 1024: it is 1.00 of the next one.
  while (unit < SIZES.length - 1 && value >= (unit === 0 ? 1024 : 1023.95)) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${value} ${value === 1 ? "byte" : "bytes"}`;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${SIZES[unit]}`;
}

// Making a formatter takes longer than a hundred uses of it, and lists use them for every row.
const counts = new Map<string | undefined, Intl.NumberFormat>();
const dates = new Map<string, { readonly day: Intl.DateTimeFormat; readonly time: Intl.DateTimeFormat }>();

/** Returns a count with its digits in groups of three, in the reader's language. */
export function formatCount(count: number, language?: string): string {
  let format = counts.get(language);
  if (format === undefined) counts.set(language, (format = new Intl.NumberFormat(language)));
  return Number.isFinite(count) ? format.format(count) : NONE;
}

/** Returns a time in the reader's zone: only the time of day if it is of the day of `now`, else with the date. */
export function formatTime(ms: number, now: number, language?: string, zone?: string): string {
  if (!Number.isFinite(ms) || ms < 0) return NONE;
  const { day, time } = dateFormats(language, zone);
  return day.format(ms) === day.format(now) ? time.format(ms) : `${day.format(ms)}, ${time.format(ms)}`;
}

function dateFormats(language: string | undefined, zone: string | undefined): { readonly day: Intl.DateTimeFormat; readonly time: Intl.DateTimeFormat } {
  const key = `${language ?? ""} ${zone ?? ""}`;
  const known = dates.get(key);
  if (known !== undefined) return known;
  const options = zone === undefined ? {} : { timeZone: zone };
  const made = {
    day: new Intl.DateTimeFormat(language, { ...options, dateStyle: "medium" }),
    time: new Intl.DateTimeFormat(language, { ...options, timeStyle: "medium" }),
  };
  dates.set(key, made);
  return made;
}

/** Returns a time exactly, for everyone the same. */
export function formatExactTime(ms: number): string {
  return Number.isFinite(ms) && ms >= 0 ? new Date(ms).toISOString() : NONE;
}

/** Returns the first line of a text, at most `limit` characters of it. */
export function firstLine(text: string, limit = 200): string {
  const end = text.indexOf("\n");
  const line = (end < 0 ? text.slice(0, limit + 1) : text.slice(0, Math.min(end, limit + 1))).trim();
  return line.length > limit ? `${line.slice(0, limit)}…` : line;
}
