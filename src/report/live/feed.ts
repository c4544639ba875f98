/**
 * Sends the newest state of a run to readers. A reader that is slow misses states in between, and never makes a queue: at most one
 * state is on its way to it, and the newest one follows.
 *
 * @module
 */

/** A connection to a reader. */
export interface FeedSink {
  /** Writes; false if the reader has not taken all of it yet. */
  write(text: string): boolean;
  end(): void;
}

/** A reader of the feed. */
export interface FeedReader {
  /** To be called when the reader has taken all that was written. */
  drained(): void;
  /** To be called when the reader is gone. */
  gone(): void;
}

interface Connection {
  readonly sink: FeedSink;
  isBusy: boolean;
  /** True if a state came that it has not been sent. */
  isBehind: boolean;
}

/** Sends states to all readers. */
export class Feed {
  #newest: string | undefined;
  readonly #connections = new Set<Connection>();

  /** Number of readers. */
  get size(): number {
    return this.#connections.size;
  }

  /** Adds a reader, which gets the newest state at once. */
  add(sink: FeedSink): FeedReader {
    const connection: Connection = { sink, isBusy: false, isBehind: this.#newest !== undefined };
    this.#connections.add(connection);
    connection.isBusy = !sink.write("retry: 1000\n\n");
    this.#send(connection);
    return {
      drained: () => {
        connection.isBusy = false;
        this.#send(connection);
      },
      gone: () => void this.#connections.delete(connection),
    };
  }

  /** Takes a state. @param name of the event @param data one line */
  publish(name: string, data: string): void {
    this.#newest = `event: ${name}\ndata: ${data}\n\n`;
    for (const connection of this.#connections) {
      connection.isBehind = true;
      this.#send(connection);
    }
  }

  /** Sends a last event to all readers, behind the newest state, and ends them. @param data one line */
  end(name: string, data: string): void {
    for (const connection of this.#connections) {
      if (connection.isBehind && this.#newest !== undefined) connection.sink.write(this.#newest);
      connection.sink.write(`event: ${name}\ndata: ${data}\n\n`);
      connection.sink.end();
    }
    this.#connections.clear();
  }

  #send(connection: Connection): void {
    if (connection.isBusy || !connection.isBehind || this.#newest === undefined) return;
    connection.isBehind = false;
    connection.isBusy = !connection.sink.write(this.#newest);
  }
}
