// The documents that pages follow: the one stream of the tab sends them when they change.

/** A document as the stream sends it. */
export interface FollowedDocument {
  readonly path: string;
  readonly status: number;
  readonly body: unknown;
}

export interface Subscription {
  /** Which document it is: two subscriptions of one key are one document of the stream. */
  readonly key: string;
  /** The path that the stream is opened with: that of output says from where on. */
  readonly path: () => string;
  readonly onDocument: (document: FollowedDocument) => void;
}

/** What pages have subscribed to. */
export class Subscriptions {
  private readonly known = new Set<Subscription>();
  private readonly listeners = new Set<() => void>();

  /** Follows a document until the function that is returned is called. */
  add(subscription: Subscription): () => void {
    this.known.add(subscription);
    this.notify();
    return () => {
      this.known.delete(subscription);
      this.notify();
    };
  }

  /** Returns which documents are followed. */
  keys(): ReadonlySet<string> {
    return new Set([...this.known].map(({ key }) => key));
  }

  /** Returns the key of each path that a stream is to be opened with. */
  paths(): ReadonlyMap<string, string> {
    const paths = new Map<string, string>();
    const keys = new Set<string>();
    for (const { key, path } of this.known) {
      if (!keys.has(key)) paths.set(path(), key);
      keys.add(key);
    }
    return paths;
  }

  /** Passes a document on to all that follow it. */
  deliver(key: string, document: FollowedDocument): void {
    for (const subscription of [...this.known]) if (subscription.key === key) subscription.onDocument(document);
  }

  /** Has a function called when documents are followed, or not any more. */
  subscribe(onChange: () => void): () => void {
    this.listeners.add(onChange);
    return () => this.listeners.delete(onChange);
  }

  private notify(): void {
    for (const onChange of this.listeners) onChange();
  }
}

/** Those of this tab. */
export const subscriptions = new Subscriptions();
