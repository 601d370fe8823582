import { type ReactNode, useState } from "react";

import { send } from "../../api/http.ts";
import { refresh } from "../../api/queries.ts";
import type { JobDetails } from "../../api/types.ts";
import { ConfirmButton } from "../../parts/ConfirmButton.tsx";

/** Changes how many slots each step of a job may use. */
export function RescaleButton({ job }: { readonly job: JobDetails }): ReactNode {
  const current = Math.max(1, ...job.vertices.map((vertex) => vertex.parallelism));
  const streaming = job["job-type"] === "STREAMING";
  const [slots, setSlots] = useState(current);
  return (
    <ConfirmButton
      label="Rescale"
      question={`Rescale ${job.name}?`}
      consequence={
        <>
          <p>
            {streaming
              ? "The queries complete the batch that they have begun, and are restarted with so many partitions of their state."
              : "Each step may use up to so many slots from now on. It applies to regions that are not deployed yet; attempts that run are not changed."}{" "}
            The tab Configuration shows what came of it.
          </p>
          <label>
            {streaming ? "Partitions and slots" : "Slots for each step"} <input type="number" min={1} value={slots} onChange={(event) => setSlots(Math.max(1, event.target.valueAsNumber || 1))} />
          </label>
        </>
      }
      action={(requestId) => rescale(job.jid, slots, requestId)}
    />
  );
}

async function rescale(id: string, slots: number, requestId: string): Promise<void> {
  await send(`/jobs/${id}/rescaling?parallelism=${slots}&triggerId=${requestId}`, { method: "PATCH" });
  refresh(new Set([id]));
}
