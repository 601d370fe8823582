import { type FormEvent, type ReactNode, useState } from "react";

import { type ApiError, refusals, token } from "../../api/http.ts";
import { Problem } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import styles from "./LoginPage.module.css";

/** Asks for a credential. What is entered is kept for this tab only. */
export function LoginPage(props: {
  readonly refused: ApiError;
  readonly onToken: (credential: string) => void;
}): ReactNode {
  const [entered, setEntered] = useState("");
  const ended = refusals.afterAccess();
  const hadToken = token.get() !== null;
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (entered.trim() !== "") props.onToken(entered.trim());
  };
  return (
    <main className={styles["login"]}>
      <h1>Flintlock</h1>
      {ended && <p role="status">Your access has ended: it has expired, or was revoked. Log in again, and this page continues where it was.</p>}
      {hadToken && <Problem error={props.refused} />}
      {!ended && !hadToken && <p>This cluster shows its jobs to those who are logged in.</p>}
      <p>On the machine of the cluster, this command opens a browser that is logged in:</p>
      <Command text="flintlock dashboard" />
      <form onSubmit={submit}>
        <label htmlFor="token">Or enter a token, which an administrator makes with flintlock token create:</label>
        <input
          id="token"
          type="password"
          autoComplete="off"
          value={entered}
          onChange={(event) => setEntered(event.target.value)}
        />
        <button type="submit">Log in for this tab</button>
      </form>
    </main>
  );
}
