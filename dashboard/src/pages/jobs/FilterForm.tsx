import { type FormEvent, type ReactNode, useState } from "react";

import { ALL_JOBS, JOB_STATES, type JobFilter, PERIODS } from "../../address/address.ts";
import { goTo } from "../../address/useAddress.ts";
import styles from "./FilterForm.module.css";

/** The conditions of a list. They are part of the address as soon as they are applied. */
export function FilterForm({ filter }: { readonly filter: JobFilter }): ReactNode {
  const [edited, setEdited] = useState(filter);
  const apply = (changes: Partial<JobFilter>): void => {
    const next = { ...edited, ...changes, after: "" };
    setEdited(next);
    goTo({ page: "jobs", filter: next });
  };
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    apply({});
  };
  const toggle = (state: string): void =>
    apply({
      states: edited.states.includes(state) ? edited.states.filter((other) => other !== state) : [...edited.states, state],
    });
  return (
    <form className={styles["form"]} onSubmit={submit}>
      <label>
        Name
        <input value={edited.name} placeholder="a part, or with *" onChange={(event) => setEdited({ ...edited, name: event.target.value })} />
      </label>
      <label>
        Label
        <input value={edited.label} placeholder="key=value" onChange={(event) => setEdited({ ...edited, label: event.target.value })} />
      </label>
      <label>
        Submitted by
        <input value={edited.user} onChange={(event) => setEdited({ ...edited, user: event.target.value })} />
      </label>
      <label>
        Started
        <select value={edited.within} onChange={(event) => apply({ within: event.target.value })}>
          <option value="">at any time</option>
          {Object.keys(PERIODS).map((period) => (
            <option key={period} value={period}>
              within {period}
            </option>
          ))}
        </select>
      </label>
      <fieldset className={styles["states"]}>
        <legend>State</legend>
        {JOB_STATES.map((state) => (
          <label key={state}>
            <input type="checkbox" checked={edited.states.includes(state)} onChange={() => toggle(state)} />
            {state}
          </label>
        ))}
      </fieldset>
      <div className={styles["buttons"]}>
        <button type="submit">Apply</button>
        <button type="button" onClick={() => apply(ALL_JOBS)}>
          All jobs
        </button>
      </div>
    </form>
  );
}
