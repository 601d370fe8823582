// A job document as it is written: YAML (and so JSON), read with the line of each key, so that problems have a place.
import { isMap, isScalar, isSeq, LineCounter, type Node, parseDocument } from "yaml";

import { typed } from "../job/parameters.ts";

export interface TextProblem {
  /** Counted from 1. */
  readonly line: number;
  readonly message: string;
}

export interface JobText {
  /** What the text says; undefined if it cannot be read. */
  readonly content: unknown;
  readonly problems: readonly TextProblem[];
  /** Returns the line of the value at a path, or of the nearest one around it. */
  readonly lineOf: (path: readonly string[]) => number;
}

/** The cluster takes no larger documents. */
const MOST_CHARACTERS = 1_000_000;

/** Reads a document. Never throws. */
export function readJobText(text: string): JobText {
  const atStart = (message: string): JobText => ({ content: undefined, problems: [{ line: 1, message }], lineOf: () => 1 });
  if (text.length > MOST_CHARACTERS) return atStart("The document is too large for this page: use flintlock run.");
  const lines = new LineCounter();
  try {
    const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, stringKeys: true });
    const problems = document.errors.map((error) => ({
      line: lines.linePos(error.pos[0]).line,
      message: `invalid YAML: ${error.message}`,
    }));
    const lineOf = (path: readonly string[]): number => lines.linePos(offsetOf(document.contents, path)).line || 1;
    return { content: problems.length > 0 ? undefined : document.toJS({ maxAliasCount: 100 }), problems, lineOf };
  } catch (error) {
    return atStart(`invalid YAML: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Returns where the key at a path begins, or the nearest one around it. */
function offsetOf(root: Node | null, path: readonly string[]): number {
  let node: unknown = root;
  let offset = 0;
  // A field such as `config.rest.port` is the key `rest.port` under `config`, and `sink.path` two keys.
  for (let rest = [...path]; rest.length > 0; ) {
    const [key = "", ...others] = rest;
    const found = step(node, key);
    if (found !== null) {
      [node, offset] = [found.value, found.offset];
      rest = others;
      continue;
    }
    const dot = key.indexOf(".");
    if (dot < 0) break;
    rest = [key.slice(0, dot), key.slice(dot + 1), ...others];
  }
  return offset;
}

function step(node: unknown, key: string): { readonly value: unknown; readonly offset: number } | null {
  if (isMap(node)) {
    const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === key);
    if (pair !== undefined) return { value: pair.value, offset: (pair.key as Node).range?.[0] ?? 0 };
  }
  if (isSeq(node) && /^\d+$/.test(key)) {
    const item = node.items[Number(key)] as Node | undefined;
    if (item !== undefined) return { value: item, offset: item.range?.[0] ?? 0 };
  }
  return null;
}

export type Parameters = Readonly<Record<string, string | number | boolean | null>>;

/** Returns the parameters of a document. */
export function parametersOf(content: unknown): Parameters {
  const params = (content as { params?: unknown } | null | undefined)?.params;
  return typeof params === "object" && params !== null && !Array.isArray(params) ? (params as Parameters) : {};
}

/** Returns a document with other values of its parameters. A value has the type of the one that it replaces. */
export function withParameters(content: unknown, given: Readonly<Record<string, string>>): unknown {
  const params = parametersOf(content);
  if (Object.keys(params).length === 0) return content;
  const changed = Object.fromEntries(
    Object.entries(params).map(([name, value]) => [name, Object.hasOwn(given, name) ? typed(given[name] ?? "", value) : value]),
  );
  return { ...(content as object), params: changed };
}

/** Returns the document of a program: a Python file that runs as it is, with these arguments and the files beside it. */
export function programDocument(file: string, args: readonly string[], others: readonly string[] = []): unknown {
  return {
    version: 1,
    name: file.replace(/\.py$/, ""),
    artifacts: [{ name: file, kind: "file" }, ...others.map((name) => (/\.(py|zip|whl)$/.test(name) ? name : { name, kind: "file" }))],
    steps: { program: { program: { file, args } } },
  };
}
