/**
 * Sends the newest state of a run to readers, in parts with a name each. A reader that is slow misses states in between, and never
 * makes a queue: at most one state of each part is on its way to it, and the newest one follows.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";

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
  /** Names of parts of which a state came that it has not been sent. */
  readonly behind: Set<string>;
}

/** Sends states to all readers. */
export class Feed {
  /** Newest states by name. */
  readonly #newest = new Map<string, string>();
  readonly #connections = new Set<Connection>();

  /** Number of readers. */
  get size(): number {
    return this.#connections.size;
  }

  /** Adds a reader, which gets the newest state at once. */
  add(sink: FeedSink): FeedReader {
    const connection: Connection = { sink, isBusy: false, behind: new Set(this.#newest.keys()) };
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

  /** Takes a state of a part, and sends it unless readers have the same. @param name of the part and its event @param data one line */
  publish(name: string, data: string): void {
    const text = `event: ${name}\ndata: ${data}\n\n`;
    if (this.#newest.get(name) === text) return;
    this.#newest.set(name, text);
    for (const connection of this.#connections) {
      connection.behind.add(name);
      this.#send(connection);
    }
  }

  /** Sends a last event to all readers, behind the newest state, and ends them. @param data one line */
  end(name: string, data: string): void {
    for (const connection of this.#connections) {
      for (const behind of connection.behind) connection.sink.write(this.#textOf(behind));
      connection.sink.write(`event: ${name}\ndata: ${data}\n\n`);
      connection.sink.end();
    }
    this.#connections.clear();
  }

  #send(connection: Connection): void {
    if (connection.isBusy || connection.behind.size === 0) return;
    const texts = [...connection.behind].map((name) => this.#textOf(name));
    connection.behind.clear();
    connection.isBusy = !connection.sink.write(texts.join(""));
  }

  #textOf(name: string): string {
    const text = this.#newest.get(name);
    if (text === undefined) throw new InternalError(`no state of '${name}' was published`);
    return text;
  }
}
