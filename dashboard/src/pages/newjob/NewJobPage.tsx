import { useMutation } from "@tanstack/react-query";
import { type ChangeEvent, type DragEvent, type ReactNode, useMemo, useState } from "react";

import { goTo } from "../../address/useAddress.ts";
import { useApi } from "../../api/queries.ts";
import { hasRole } from "../../api/roles.ts";
import type { CallerInfo } from "../../api/types.ts";
import { formatBytes } from "../../formats/formats.ts";
import { Problem } from "../../parts/Answer.tsx";
import { Empty, Section } from "../../parts/Section.tsx";
import { parametersOf, programDocument, readJobText, withParameters } from "./document.ts";
import { Editor } from "./Editor.tsx";
import styles from "./NewJobPage.module.css";
import { PlanPreview } from "./PlanPreview.tsx";
import { PythonNote } from "./PythonNote.tsx";
import { submitJob } from "./submission.ts";
import { useCheck } from "./useCheck.ts";
import { usePythonFile } from "./usePythonFile.ts";

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
  const [chosen, setChosen] = useState("");
  const read = useMemo(() => readJobText(text), [text]);
  const python = usePythonFile(program, files);
  const job = python.content?.jobs.find(({ name }) => name === chosen) ?? python.content?.jobs[0];
  const content = program === null ? read.content : job?.document;
  const draft = python.isProgram && program !== null ? programDocument(program.name, argumentsOf(values["args"]), files.map(({ name }) => name)) : withParameters(content, values);
  const sent = program === null ? files : (job?.files ?? [program, ...files]);
  const problems = program === null ? read.problems : (python.content?.problems ?? []);
  const unknown = program !== null && !python.isProgram && job === undefined;
  const check = useCheck(problems.length > 0 || unknown ? undefined : draft, sent);

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
      } else if (given.length === 1 && given[0]?.name.endsWith(".py") && files.length === 0 && program === null && text === EXAMPLE) {
        setValues({});
        setProgram(given[0]);
      } else setFiles((known) => [...known.filter((file) => !others.some((other) => other.name === file.name)), ...others]);
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
  // A problem of a graph in Python has its line already; what the cluster finds besides has the beginning of the file.
  const marked = [...problems, ...check.problems.map(({ path, message }) => ({ line: program === null ? read.lineOf(path) : 1, message }))];
  return (
    <div className={styles["page"]} onDrop={drop} onDragOver={(event) => event.preventDefault()}>
      <header className={styles["head"]}>
        <h1>New job</h1>
        <SubmitButton document={draft} files={sent} enabled={check.ready && marked.length === 0} />
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
          <>
            <Editor text={python.text} problems={marked} />
            <PythonNote file={program} python={python} chosen={job?.name ?? ""} onChoose={setChosen} values={values} onChange={setValues} onRemove={() => setProgram(null)} />
          </>
        )}
        <Files files={files} onRemove={(file) => setFiles(files.filter((other) => other !== file))} />
        {check.error !== null && <Problem error={check.error} />}
      </Section>
      {!(program !== null && python.isProgram) && <ParameterForm content={content} values={values} onChange={setValues} />}
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
  goTo({ page: "job", id: await submitJob(document, files), tab: "graph", step: "" });
}
