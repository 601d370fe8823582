import { useEffect, useState } from "react";

import { send } from "../../api/http.ts";
import type { JobCheckProblem, JobCheck, Plan } from "../../api/types.ts";

const PAUSE_MS = 300;

export interface Check {
  /** Whether the document as it is now was checked. */
  readonly ready: boolean;
  readonly plan: Plan | null;
  readonly regions: readonly (readonly string[])[];
  readonly problems: readonly JobCheckProblem[];
  readonly error: unknown;
}

const NOTHING: Check = { ready: false, plan: null, regions: [], problems: [], error: null };

/** Has the cluster check a document, a moment after its last change. Undefined: there is none. */
export function useCheck(document: unknown, files: readonly File[]): Check {
  const body = document === undefined ? "" : JSON.stringify({ document: document ?? null, files: files.map((file) => file.name) });
  const [checked, setChecked] = useState<{ readonly body: string; readonly check: Check }>({ body: "", check: NOTHING });
  useEffect(() => {
    if (body === "") return undefined;
    const end = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const headers = { "Content-Type": "application/json" };
        const response = await send("/jobs/check", { method: "POST", headers, body, signal: end.signal });
        const { plan = null, regions = [], problems = [] } = (await response.json()) as JobCheck;
        setChecked({ body, check: { ready: true, plan, regions, problems, error: null } });
      } catch (error) {
        if (!end.signal.aborted) setChecked({ body, check: { ...NOTHING, error } });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      end.abort();
    };
  }, [body]);
  if (body === "") return NOTHING;
  // What was found of another text is shown until this one is checked, and cannot be submitted.
  return checked.body === body ? checked.check : { ...checked.check, ready: false };
}
