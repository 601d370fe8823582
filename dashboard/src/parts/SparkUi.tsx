import { useMutation } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { send } from "../api/http.ts";
import type { SparkUiLink } from "../api/types.ts";
import { Problem } from "./Answer.tsx";

/** A button that opens Spark's own UI of a TaskManager's engine in another tab, by a link that the cluster makes for it. */
export function SparkUi({ taskManager, label }: { readonly taskManager: string; readonly label: string }): ReactNode {
  const opening = useMutation({
    mutationFn: async () => {
      const response = await send(`/taskmanagers/${encodeURIComponent(taskManager)}/spark-ui`, { method: "POST" });
      return (await response.json()) as SparkUiLink;
    },
    networkMode: "always",
    onSuccess: (link) => window.open(link.path, "_blank", "noopener"),
  });
  return (
    <div>
      <button type="button" disabled={opening.isPending} onClick={() => opening.mutate()}>
        {label}
      </button>
      {opening.error !== null && <Problem error={opening.error} />}
    </div>
  );
}
