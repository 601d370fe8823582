import type { ReactNode } from "react";

import type { JobAttempts } from "../../api/types.ts";
import { formatDuration } from "../../formats/formats.ts";
import { Empty, Section } from "../../parts/Section.tsx";
import { StateBadge } from "../../parts/StateBadge.tsx";
import { Table } from "../../parts/Table.tsx";
import { type Phase, phasesOf, rangeOf } from "./phases.ts";
import styles from "./TimelineTab.module.css";

const WIDTH = 1000;

/** Every attempt as a bar, divided by the states that it was in. */
export function TimelineTab({ attempts, now }: { readonly attempts: JobAttempts; readonly now: number }): ReactNode {
  const rows = (attempts.regions ?? []).flatMap((region) =>
    (region.attempts ?? []).map((attempt) => ({ region, attempt, phases: phasesOf(attempt, now) })),
  );
  const range = rangeOf(rows.flatMap((row) => row.phases));
  return (
    <Section title="Timeline" aside={`${formatDuration(range.to - range.from)} from the first to the last`}>
      {rows.length === 0 ? (
        <Empty>Nothing was attempted yet.</Empty>
      ) : (
        <Table label="Timeline" columns={["Steps", "State", "Where the time went"]}>
          {rows.map(({ region, attempt, phases }) => (
            <tr key={`${region.region} ${attempt.attempt}`}>
              <td>
                {(region.steps ?? []).join(", ")}
                <span className={styles["text"]}>
                  {" "}
                  region {region.region}, attempt {attempt.attempt}
                </span>
              </td>
              <td>
                <StateBadge state={attempt.state} />
              </td>
              <td className={styles["bars"]}>
                <Bars phases={phases} from={range.from} to={range.to} />
                <span className={styles["text"]}>{textOf(phases)}</span>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Section>
  );
}

function Bars(props: { readonly phases: readonly Phase[]; readonly from: number; readonly to: number }): ReactNode {
  const scale = WIDTH / (props.to - props.from);
  return (
    <svg viewBox={`0 0 ${WIDTH} 16`} preserveAspectRatio="none" className={styles["chart"]} aria-hidden="true">
      {props.phases.map((phase) => (
        <rect
          key={phase.state}
          className={styles[phase.state.toLowerCase()] ?? styles["other"]}
          x={(phase.from - props.from) * scale}
          width={Math.max(1, (phase.to - phase.from) * scale)}
          height={16}
        />
      ))}
    </svg>
  );
}

function textOf(phases: readonly Phase[]): string {
  return phases
    .filter((phase) => phase.to > phase.from)
    .map((phase) => `${phase.state} ${formatDuration(phase.to - phase.from)}`)
    .join(" · ");
}
