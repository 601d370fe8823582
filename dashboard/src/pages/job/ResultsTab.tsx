import { type ReactNode, useState } from "react";

import { send } from "../../api/http.ts";
import { useApi } from "../../api/queries.ts";
import type { ResultNames, ResultTable } from "../../api/types.ts";
import { formatCount } from "../../formats/formats.ts";
import { Answer, Problem } from "../../parts/Answer.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { Table } from "../../parts/Table.tsx";
import { cellText, toCsv } from "./csv.ts";
import styles from "./ResultsTab.module.css";

const ARROW = "application/vnd.apache.arrow.stream";
const MOST_ROWS = 500;

/** The results of a job as tables. */
export function ResultsTab({ id }: { readonly id: string }): ReactNode {
  const names = useApi<ResultNames>(`/jobs/${id}/results`);
  return (
    <Answer query={names}>
      {({ results = [] }) =>
        results.length === 0 ? (
          <Section title="Results">
            <Empty>This job has no result, or none yet.</Empty>
          </Section>
        ) : (
          results.map((name) => <Result key={name} id={id} name={name} />)
        )
      }
    </Answer>
  );
}

function Result({ id, name }: { readonly id: string; readonly name: string }): ReactNode {
  const path = `/jobs/${id}/results/${encodeURIComponent(name)}`;
  const query = useApi<ResultTable>(path);
  return (
    <Section title={name} aside={query.data && <Downloads path={path} table={query.data} />}>
      <Answer query={query}>
        {({ columns = [], rows = [], truncated }) => (
          <>
            <p className={styles["count"]}>
              {formatCount(rows.length)} rows{truncated && ", more were not kept: see the limit of the step"}
              {rows.length > MOST_ROWS && `; the first ${MOST_ROWS} are shown`}
            </p>
            <Table
              label={name}
              columns={columns.map((column) => (
                <>
                  {column.name} <small>{column.type}</small>
                </>
              ))}
            >
              {rows.slice(0, MOST_ROWS).map((row, index) => (
                <tr key={index}>
                  {row.map((value, column) => (
                    <td key={column} className={styles["cell"]}>
                      {value === null ? <em>null</em> : cellText(value).slice(0, 2000)}
                    </td>
                  ))}
                </tr>
              ))}
            </Table>
          </>
        )}
      </Answer>
    </Section>
  );
}

function Downloads({ path, table }: { readonly path: string; readonly table: ResultTable }): ReactNode {
  const [error, setError] = useState<unknown>(null);
  const arrow = async (): Promise<void> => {
    try {
      const response = await send(path, { headers: { Accept: ARROW } });
      save(await response.blob(), `${table.name}.arrow`);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  const text = (content: string, type: string, name: string): void => save(new Blob([content], { type }), name);
  return (
    <span className={styles["downloads"]}>
      <button type="button" onClick={() => text(toCsv(table), "text/csv", `${table.name}.csv`)}>
        CSV
      </button>
      <button type="button" onClick={() => text(JSON.stringify(table), "application/json", `${table.name}.json`)}>
        JSON
      </button>
      <button type="button" onClick={() => void arrow()}>
        Arrow
      </button>
      {error !== null && <Problem error={error} />}
    </span>
  );
}

function save(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
