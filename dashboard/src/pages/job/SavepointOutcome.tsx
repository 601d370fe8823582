import { type ReactNode, useCallback, useEffect, useState } from "react";

import { send } from "../../api/http.ts";
import { refresh, useApi } from "../../api/queries.ts";
import type { OperationResponse, TriggerResponse } from "../../api/types.ts";
import { Problem } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { progressOf, type SavepointKind, type SavepointProgress } from "./savepoints.ts";

const PATHS = { savepoint: "savepoints", stop: "stop" } as const;

interface Requested {
  readonly kind: SavepointKind;
  readonly trigger: string;
}

interface Savepoint {
  /** The latest one that this page has requested; null: none. */
  readonly requested: Requested | null;
  readonly progress: SavepointProgress;
  /** Why its status cannot be read; null: it can. */
  readonly error: Error | null;
  readonly stopping: boolean;
  readonly request: (kind: SavepointKind, requestId: string) => Promise<void>;
}

/** Requests savepoints of a job, and follows the latest one that was requested here. */
export function useSavepoint(job: string): Savepoint {
  const [requested, setRequested] = useState<Requested | null>(null);
  const [known, setKnown] = useState(""); // the one whose outcome is known
  const query = useApi<OperationResponse>(`/jobs/${job}/savepoints/${requested?.trigger ?? ""}`, {
    enabled: requested !== null,
    follow: requested !== null && requested.trigger !== known,
  });
  const progress = progressOf(query.data);
  useEffect(() => {
    if (requested !== null && progress.state !== "in progress") setKnown(requested.trigger);
  }, [requested, progress.state]);
  const request = useCallback(
    async (kind: SavepointKind, requestId: string) => {
      const body = JSON.stringify({ triggerId: requestId });
      const response = await send(`/jobs/${job}/${PATHS[kind]}`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
      setRequested({ kind, trigger: ((await response.json()) as TriggerResponse)["request-id"] });
    },
    [job],
  );
  useEffect(() => {
    if (requested !== null) refresh(new Set([job])); // the list of the job's changes has it
  }, [job, requested, progress.state]);
  return { requested, progress, error: query.error, stopping: requested?.kind === "stop" && progress.state === "in progress", request };
}

/** What came of the latest savepoint that this page has requested. */
export function SavepointOutcome({ savepoint }: { readonly savepoint: Savepoint }): ReactNode {
  const { requested, progress } = savepoint;
  if (requested === null) return null;
  return (
    <div role="status">
      {savepoint.error !== null && <Problem error={savepoint.error} />}
      {progress.state === "in progress" && (requested.kind === "stop" ? <p>The job is being stopped: its queries complete their batches, then it is saved.</p> : <p>The savepoint is being made.</p>)}
      {progress.state === "made" && (
        <>
          <p>The savepoint is complete. A job begins from it with <code>flintlock run -s</code> and this path:</p>
          <Command text={progress.location} />
        </>
      )}
      {progress.state === "failed" && <Problem error={new Error(`No savepoint was made: ${progress.reason}`)} />}
    </div>
  );
}
