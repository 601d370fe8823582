// The text of server-sent events, as it arrives: in pieces that end anywhere.

export interface ServerSentEvent {
  readonly event: string;
  readonly data: string;
  /** What to name when the stream is opened again, to continue behind this event; absent: the last one still counts. */
  readonly id?: string;
}

export interface ParsedEvents {
  readonly events: readonly ServerSentEvent[];
  /** The beginning of an event of which the rest has not arrived. */
  readonly rest: string;
}

/** Returns the complete events of a text. Comments are no events. */
export function parseEvents(text: string): ParsedEvents {
  const blocks = text.split("\n\n");
  const rest = blocks.pop() ?? "";
  const events: ServerSentEvent[] = [];
  for (const block of blocks) {
    let event = "message";
    let id: string | undefined;
    const data: string[] = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) event = line.slice("event: ".length);
      else if (line.startsWith("id: ")) id = line.slice("id: ".length);
      else if (line.startsWith("data: ")) data.push(line.slice("data: ".length));
    }
    if (data.length > 0) events.push({ event, data: data.join("\n"), ...(id === undefined ? {} : { id }) });
  }
  return { events, rest };
}
