import type { ReactNode } from "react";

import styles from "./Chart.module.css";

const HEIGHT = 56;
const BAR = 10;
const LEAST_BARS = 40;

/** Values in their order as small bars, the latest at the right, with the latest and the largest as text. */
export function Chart(props: {
  readonly label: string;
  readonly values: readonly number[];
  readonly format: (value: number) => string;
  /** What a value belongs to, shown on hover. */
  readonly nameOf?: (index: number) => string;
}): ReactNode {
  const { values, format } = props;
  const largest = Math.max(0, ...values);
  const latest = values.at(-1);
  const places = Math.max(LEAST_BARS, values.length);
  const scale = largest === 0 ? 0 : (HEIGHT - 2) / largest;
  return (
    <figure className={styles["chart"]}>
      <figcaption>
        <span>{props.label}</span> <strong>{latest === undefined ? "–" : format(latest)}</strong>
      </figcaption>
      <svg
        viewBox={`0 0 ${places * BAR} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${props.label}: ${latest === undefined ? "nothing yet" : `${format(latest)}, at most ${format(largest)}`}`}
      >
        {values.map((value, index) => (
          <rect key={index} x={(places - values.length + index) * BAR + 1} width={BAR - 2} y={HEIGHT - Math.max(1, value * scale)} height={Math.max(1, value * scale)}>
            <title>{`${props.nameOf?.(index) ?? ""} ${format(value)}`.trim()}</title>
          </rect>
        ))}
      </svg>
      <small>at most {format(largest)}</small>
    </figure>
  );
}

/** Charts beside each other. */
export function Charts({ children }: { readonly children: ReactNode }): ReactNode {
  return <div className={styles["charts"]}>{children}</div>;
}
