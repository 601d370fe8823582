// The parameters of a job that is run again: only those that the reader has changed are sent.
export type Parameter = string | number | boolean | null;

/** Returns the values that differ, each of the type of the one that it replaces. */
export function changedParameters(params: Readonly<Record<string, Parameter>>, given: Readonly<Record<string, string>>): Readonly<Record<string, Parameter>> {
  const changed = Object.entries(given).filter(([name, text]) => Object.hasOwn(params, name) && text !== String(params[name] ?? ""));
  return Object.fromEntries(changed.map(([name, text]) => [name, typed(text, params[name] ?? null)]));
}

/** Returns a text as a value of the type that another one has, or as it is where it cannot be one. */
export function typed(text: string, like: unknown): Parameter {
  if (typeof like === "number" && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (typeof like === "boolean" && (text === "true" || text === "false")) return text === "true";
  return text;
}
