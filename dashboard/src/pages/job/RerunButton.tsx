import { type ReactNode, useState } from "react";

import { send } from "../../api/http.ts";
import { useApi } from "../../api/queries.ts";
import type { JobConfigResponse, JobDetails, SubmittedJob } from "../../api/types.ts";
import { goTo } from "../../address/useAddress.ts";
import { ConfirmButton } from "../../parts/ConfirmButton.tsx";
import styles from "./RerunButton.module.css";
import { changedParameters } from "./parameters.ts";

/** Runs a job again from its beginning, with the same parameters or others. */
export function RerunButton({ job }: { readonly job: JobDetails }): ReactNode {
  const config = useApi<JobConfigResponse>(`/jobs/${job.jid}/config`);
  const [values, setValues] = useState<Readonly<Record<string, string>>>({});
  const params = config.data?.params ?? {};
  return (
    <ConfirmButton
      label="Run again"
      question={`Run ${job.name} again?`}
      consequence={
        <>
          <p>
            A new job with the same graph is submitted, and runs from its beginning
            {Object.keys(params).length > 0 ? ", with these parameters" : ""}. This one stays as it is.
          </p>
          <div className={styles["parameters"]}>
            {Object.entries(params).map(([name, value]) => (
              <label key={name}>
                {name}
                <input value={values[name] ?? String(value ?? "")} onChange={(event) => setValues({ ...values, [name]: event.target.value })} />
              </label>
            ))}
          </div>
        </>
      }
      action={(requestId) => rerun(job.jid, requestId, { params: changedParameters(params, values) })}
    />
  );
}

/** Runs what had not finished when a job failed. */
export function ContinueButton({ job }: { readonly job: JobDetails }): ReactNode {
  return (
    <ConfirmButton
      label="Continue from the failure"
      question={`Run ${job.name} again from where it failed?`}
      consequence="A new job with the same graph and the same parameters is submitted. What had finished before the failure is neither run nor published again; results that are missing or changed are computed again. This job stays as it is."
      action={(requestId) => rerun(job.jid, requestId, { "from-failed": true })}
    />
  );
}

async function rerun(id: string, requestId: string, request: Readonly<Record<string, unknown>>): Promise<void> {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": requestId };
  const response = await send(`/jobs/${id}/rerun`, { method: "POST", headers, body: JSON.stringify(request) });
  const { jobid } = (await response.json()) as SubmittedJob;
  goTo({ page: "job", id: jobid, tab: "graph", step: "" });
}
