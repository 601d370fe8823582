import { newRequestId, send } from "../../api/http.ts";
import type { SubmittedJob } from "../../api/types.ts";

/** Submits a document with its files; returns the id of the job. */
export async function submitJob(document: unknown, files: readonly File[], signal?: AbortSignal): Promise<string> {
  const json = JSON.stringify(document);
  const headers: Record<string, string> = { "Idempotency-Key": newRequestId() };
  let body: string | FormData = json;
  if (files.length === 0) headers["Content-Type"] = "application/json";
  else {
    body = new FormData();
    body.append("request", json);
    for (const file of files) body.append("file", file, file.name);
  }
  const response = await send("/jobs", { method: "POST", headers, body, ...(signal === undefined ? {} : { signal }) });
  return ((await response.json()) as SubmittedJob).jobid;
}
