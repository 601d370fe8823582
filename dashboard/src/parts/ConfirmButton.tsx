import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useId, useRef, useState } from "react";

import { newRequestId } from "../api/http.ts";
import { Problem } from "./Answer.tsx";
import styles from "./ConfirmButton.module.css";

/** A button for an action that happens after a question, which says what will happen. */
export function ConfirmButton(props: {
  readonly label: string;
  readonly question: string;
  readonly consequence: ReactNode;
  /** Gets an id of 32 hex digits: another one for each question, the same one where the reader tries it again. */
  readonly action: (requestId: string) => Promise<unknown>;
}): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const [requestId, setRequestId] = useState("");
  const title = useId();
  const action = useMutation({
    mutationFn: () => props.action(requestId),
    networkMode: "always",
    onSuccess: () => dialog.current?.close(),
  });
  const open = (): void => {
    action.reset();
    setRequestId(newRequestId());
    dialog.current?.showModal();
  };
  return (
    <>
      <button type="button" onClick={open}>
        {props.label}
      </button>
      <dialog ref={dialog} className={styles["dialog"]} aria-labelledby={title}>
        <h2 id={title}>{props.question}</h2>
        <div>{props.consequence}</div>
        {action.error !== null && <Problem error={action.error} />}
        <div className={styles["buttons"]}>
          <button type="button" onClick={() => dialog.current?.close()}>
            Back
          </button>
          <button type="button" className={styles["confirm"]} disabled={action.isPending} onClick={() => action.mutate()}>
            {props.label}
          </button>
        </div>
      </dialog>
    </>
  );
}
