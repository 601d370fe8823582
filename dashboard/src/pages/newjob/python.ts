// A Python file as a job: which jobs it defines is found by running it on a TaskManager, as all user code.
import type { ResultTable } from "../../api/types.ts";
import type { TextProblem } from "./document.ts";

/** A job that a Python file defines. */
export interface PythonJob {
  /** The name of the variable. */
  readonly name: string;
  readonly document: unknown;
  readonly files: readonly File[];
}

export interface PythonContent {
  readonly jobs: readonly PythonJob[];
  readonly problems: readonly TextProblem[];
}

/** What the job that reads the file may take. */
const LIMIT = "60 s";

/** Returns whether a file can define a job graph: another one is a program. */
export function importsFlintlock(text: string): boolean {
  return /^[ \t]*(import|from)[ \t]+flintlock\b/m.test(text);
}

/** Returns the document of the job that reads a file: a step whose function returns what the file defines. */
export function readingDocument(file: string, others: readonly string[]): unknown {
  return {
    version: 1,
    name: `plan of ${file}`,
    labels: { purpose: "plan" },
    params: { file },
    config: { "restart-strategy.type": "none", "job.timeout": LIMIT },
    artifacts: [file, ...others].map((name) => ({ name, kind: "file" })),
    steps: {
      read: { function: "flintlock.client.authoring.described:graphs" },
      plan: { result: {}, inputs: ["read"] },
    },
  };
}

/** Returns what the rows of that job say. A job with a problem is none that can be submitted. */
export function readContent({ columns = [], rows = [] }: Pick<ResultTable, "columns" | "rows">): PythonContent {
  const names = columns.map((column) => column.name);
  const facts = rows.map((row) => Object.fromEntries(row.map((value, index) => [names[index] ?? "", value])));
  const text = (value: unknown): string => (typeof value === "string" ? value : "");
  const of = (kind: string, job?: unknown): typeof facts => facts.filter((fact) => fact["kind"] === kind && (job === undefined || fact["job"] === job));
  return {
    jobs: of("document").map((fact) => ({
      name: text(fact["job"]),
      document: JSON.parse(text(fact["text"])) as unknown,
      files: of("file", fact["job"]).map((file) => new File([bytesOf(text(file["text"]))], text(file["name"]))),
    })),
    problems: of("problem").map((fact) => ({ line: Math.max(1, Number(fact["line"])), message: text(fact["text"]) })),
  };
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
