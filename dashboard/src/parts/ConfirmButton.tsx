import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useId, useRef } from "react";

import { Problem } from "./Answer.tsx";
import styles from "./ConfirmButton.module.css";

/** A button for an action that happens after a question, which says what will happen. */
export function ConfirmButton(props: {
  readonly label: string;
  readonly question: string;
  readonly consequence: ReactNode;
  readonly action: () => Promise<unknown>;
}): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  const action = useMutation({
    mutationFn: props.action,
    networkMode: "always",
    onSuccess: () => dialog.current?.close(),
  });
  const open = (): void => {
    action.reset();
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
