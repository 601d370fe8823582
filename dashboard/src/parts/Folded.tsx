import { type ReactNode, useState } from "react";

/** Something that is read only when the reader opens it. */
export function Folded(props: { readonly title: string; readonly children: () => ReactNode }): ReactNode {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.title}</summary>
      {open && props.children()}
    </details>
  );
}
