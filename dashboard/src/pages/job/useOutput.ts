import { useEffect, useState } from "react";

import { ApiError } from "../../api/http.ts";
import type { JobLogs } from "../../api/types.ts";
import { type FollowedDocument, subscriptions } from "../../live/subscriptions.ts";

const TAIL_BYTES = 256 * 1024;
const MOST_CHARACTERS = 2_000_000;

export interface Output {
  readonly text: string;
  readonly size: number;
  /** How many bytes at the beginning are not shown. */
  readonly skipped: number;
  readonly complete: boolean;
  readonly error: unknown;
}

const NOTHING: Output = { text: "", size: 0, skipped: 0, complete: false, error: null };

/** Follows the output of an attempt from near its end until it is complete. */
export function useOutput(job: string, region: number, attempt: number): Output {
  const [output, setOutput] = useState(NOTHING);
  useEffect(() => {
    const key = `/jobs/${job}/logs?region=${region}&attempt=${attempt}`;
    let offset = -TAIL_BYTES;
    const onDocument = ({ status, body }: FollowedDocument): void => {
      if (status !== 200) {
        const error = new ApiError(status, (body as { errors?: string[] }).errors ?? []);
        setOutput((before) => ({ ...before, error }));
        return;
      }
      const part = (body as JobLogs).logs?.[0];
      if (part === undefined) return;
      const begins = offset < 0;
      offset = part["next-offset"];
      setOutput((before) => ({
        text: ((begins ? "" : before.text) + (part.text ?? "")).slice(-MOST_CHARACTERS),
        size: part.size ?? 0,
        skipped: begins ? (part.offset ?? 0) : before.skipped,
        complete: part.complete ?? false,
        error: null,
      }));
    };
    return subscriptions.add({ key, path: () => `${key}&offset=${offset}`, onDocument });
  }, [job, region, attempt]);
  return output;
}
