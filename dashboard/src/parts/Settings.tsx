import { type ReactNode, useState } from "react";

import { Empty } from "./Section.tsx";
import styles from "./Settings.module.css";
import { Table } from "./Table.tsx";

/** Keys with their values, sorted, with a search. */
export function Settings(props: { readonly label: string; readonly entries: readonly (readonly [string, string])[] }): ReactNode {
  const [search, setSearch] = useState("");
  if (props.entries.length === 0) return <Empty>Nothing is set.</Empty>;
  const wanted = search.toLowerCase();
  const shown = props.entries
    .filter(([key, value]) => key.toLowerCase().includes(wanted) || value.toLowerCase().includes(wanted))
    .sort(([one], [other]) => (one < other ? -1 : 1));
  return (
    <>
      <label className={styles["search"]}>
        Search <input type="search" value={search} onChange={(event) => setSearch(event.target.value)} />
      </label>
      <Table label={props.label} columns={["Key", "Value"]}>
        {shown.map(([key, value]) => (
          <tr key={key}>
            <td>
              <code>{key}</code>
            </td>
            <td>
              <code>{value}</code>
            </td>
          </tr>
        ))}
      </Table>
    </>
  );
}
