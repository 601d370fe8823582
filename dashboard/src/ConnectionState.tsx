import type { ReactNode } from "react";

import styles from "./ConnectionState.module.css";
import { useLive } from "./live/LiveProvider.tsx";
import { Time } from "./parts/Time.tsx";

/** Whether what is shown is current, and since when it is not. */
export function ConnectionState(): ReactNode {
  const { connection, lostSince } = useLive();
  return (
    <div role="status" className={`${styles["state"]} ${styles[connection]}`}>
      {connection === "live" && "Live"}
      {connection === "connecting" && "Connecting …"}
      {connection === "lost" && (
        <>
          Connection lost: what is shown is of <Time ms={lostSince ?? 0} now={Date.now()} />. Trying again …
        </>
      )}
    </div>
  );
}
