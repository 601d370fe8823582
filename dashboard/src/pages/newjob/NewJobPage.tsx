import { useMutation } from "@tanstack/react-query";
import { type ChangeEvent, type DragEvent, type ReactNode, useMemo, useState } from "react";

import { goTo } from "../../address/useAddress.ts";
import { newRequestId, send } from "../../api/http.ts";
import { useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo, SubmittedJob } from "../../api/types.ts";
import { formatBytes } from "../../formats/formats.ts";
import { Problem } from "../../parts/Answer.tsx";
import { Command } from "../../parts/Command.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { parametersOf, programDocument, readJobText, withParameters } from "./document.ts";
import { Editor } from "./Editor.tsx";
import styles from "./NewJobPage.module.css";
import { PlanPreview } from "./PlanPreview.tsx";
import { useCheck } from "./useCheck.ts";

const EXAMPLE = `version: 1
name: squares
params: {many: 5}
steps:
  numbers: {sql: "SELECT id, id * id AS square FROM range(:many)"}
  squares: {result: {}, inputs: [numbers]}
`;

/** Writes a job, or takes one from files; shows its plan and problems while it is written; submits it. */
export function NewJobPage(): ReactNode {
  const caller = useApi<CallerInfo>("/whoami");
  const [text, setText] = useState(EXAMPLE);
  const [files, setFiles] = useState<readonly File[]>([]);
  const [program, setProgram] = useState<File | null>(null);
  const [values, setValues] = useState<Readonly<Record<string, string>>>({});
  const [unread, setUnread] = useState<unknown>(null);
  const read = useMemo(() => readJobText(text), [text]);
  const document = program === null ? withParameters(read.content, values) : programDocument(program.name, argumentsOf(values["args"]));
  const sent = program === null ? files : [program];
  const check = useCheck(read.problems.length > 0 && program === null ? undefined : document, sent);

  const take = async (given: readonly File[]): Promise<void> => {
    setUnread(null);
    try {
      const job = given.find((file) => /\.(ya?ml|json)$/i.test(file.name));
      const others = given.filter((file) => file !== job);
      if (job !== undefined) {
        setText(await job.text());
        setValues({});
        setProgram(null);
        setFiles(others);
      } else if (given.length === 1 && given[0]?.name.endsWith(".py") && files.length === 0 && text === EXAMPLE) setProgram(given[0]);
      else setFiles((known) => [...known.filter((file) => !others.some((other) => other.name === file.name)), ...others]);
    } catch (error) {
      setUnread(error);
    }
  };
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    void take([...event.dataTransfer.files]);
  };
  const choose = (event: ChangeEvent<HTMLInputElement>): void => {
    void take([...(event.target.files ?? [])]);
    event.target.value = "";
  };
  if (caller.data !== undefined && !hasRole(caller.data, "submitter"))
    return (
      <>
        <h1>New job</h1>
        <Section title="You cannot submit jobs here">
          <Empty>
            You are {caller.data.name}, with the role {caller.data.role}. An administrator can make a token with the role submitter.
          </Empty>
        </Section>
      </>
    );
  const marked = program !== null ? [] : [...read.problems, ...check.problems.map(({ path, message }) => ({ line: read.lineOf(path), message }))];
  return (
    <div className={styles["page"]} onDrop={drop} onDragOver={(event) => event.preventDefault()}>
      <header className={styles["head"]}>
        <h1>New job</h1>
        <SubmitButton document={document} files={sent} enabled={check.ready && marked.length === 0 && check.problems.length === 0} />
      </header>
      <Section
        title={program === null ? "Document" : program.name}
        aside={
          <label className={styles["choose"]}>
            Choose files, or drop them here
            <input type="file" multiple accept=".yaml,.yml,.json,.py,.zip,.whl,.jar,.txt" onChange={choose} />
          </label>
        }
      >
        {unread !== null && <Problem error={new Error("A file could not be read.")} />}
        {program === null ? (
          <Editor text={text} problems={marked} onChange={setText} />
        ) : (
          <ProgramNote file={program} values={values} onChange={setValues} onRemove={() => setProgram(null)} />
        )}
        {program === null && <Files files={files} onRemove={(file) => setFiles(files.filter((other) => other !== file))} />}
        {check.error !== null && <Problem error={check.error} />}
        {program !== null && check.problems.map(({ message }) => <Problem key={message} error={new Error(message)} />)}
      </Section>
      {program === null && <ParameterForm content={read.content} values={values} onChange={setValues} />}
      <PlanPreview check={check} />
    </div>
  );
}

function SubmitButton(props: { readonly document: unknown; readonly files: readonly File[]; readonly enabled: boolean }): ReactNode {
  const submission = useMutation({ mutationFn: () => submit(props.document, props.files), networkMode: "always" });
  return (
    <div className={styles["submit"]}>
      <button type="button" className={styles["primary"]} disabled={!props.enabled || submission.isPending} onClick={() => submission.mutate()}>
        {submission.isPending ? "Submitting …" : "Submit"}
      </button>
      {submission.error !== null && <Problem error={submission.error} />}
    </div>
  );
}

function ProgramNote(props: {
  readonly file: File;
  readonly values: Readonly<Record<string, string>>;
  readonly onChange: (values: Readonly<Record<string, string>>) => void;
  readonly onRemove: () => void;
}): ReactNode {
  return (
    <div className={styles["program"]}>
      <p>
        This file is submitted as a program: it runs on a TaskManager, as it is. The JobManager neither runs nor imports it, so its
        steps are not known before. If it defines a job graph, submit that from the command line instead:
      </p>
      <Command text={`flintlock run ${props.file.name}:job`} />
      <label>
        Arguments
        <input value={props.values["args"] ?? ""} placeholder="--day 2026-01-01" onChange={(event) => props.onChange({ args: event.target.value })} />
      </label>
      <button type="button" onClick={props.onRemove}>
        Write a document instead
      </button>
    </div>
  );
}

function Files(props: { readonly files: readonly File[]; readonly onRemove: (file: File) => void }): ReactNode {
  return (
    <ul className={styles["files"]}>
      {props.files.map((file) => (
        <li key={file.name}>
          <code>{file.name}</code> {formatBytes(file.size)}{" "}
          <button type="button" aria-label={`Remove ${file.name}`} onClick={() => props.onRemove(file)}>
            Remove
          </button>
        </li>
      ))}
    </ul>
  );
}

function ParameterForm(props: {
  readonly content: unknown;
  readonly values: Readonly<Record<string, string>>;
  readonly onChange: (values: Readonly<Record<string, string>>) => void;
}): ReactNode {
  const params = Object.entries(parametersOf(props.content));
  if (params.length === 0) return null;
  return (
    <Section title="Parameters">
      <div className={styles["parameters"]}>
        {params.map(([name, value]) => (
          <label key={name}>
            {name}
            <input
              value={props.values[name] ?? String(value ?? "")}
              onChange={(event) => props.onChange({ ...props.values, [name]: event.target.value })}
            />
          </label>
        ))}
      </div>
    </Section>
  );
}

function argumentsOf(text: string | undefined): readonly string[] {
  return (text ?? "").split(/\s+/).filter((part) => part !== "");
}

async function submit(document: unknown, files: readonly File[]): Promise<void> {
  const key = newRequestId();
  const json = JSON.stringify(document);
  const headers: Record<string, string> = { "Idempotency-Key": key };
  let body: string | FormData = json;
  if (files.length === 0) headers["Content-Type"] = "application/json";
  else {
    body = new FormData();
    body.append("request", json);
    for (const file of files) body.append("file", file, file.name);
  }
  const response = await send("/jobs", { method: "POST", headers, body });
  const { jobid } = (await response.json()) as SubmittedJob;
  goTo({ page: "job", id: jobid, tab: "graph", step: "" });
}
