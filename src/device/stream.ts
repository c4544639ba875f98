/**
 * Streams: queues of work on a device, each in its own order. Streams are concurrent, until one waits for an event of another
 * stream. The host enqueues and does not wait.
 *
 * @module
 */
import { InternalError } from "../errors.ts";

/** Streams by purpose. */
export const STREAMS = ["compute", "gather", "reduce", "copy"] as const;
/** Name of a stream. */
export type StreamName = typeof STREAMS[number];

/** A point in a stream's order. */
export interface DeviceEvent {
  /** True if all work before it is done. Never waits. */
  readonly done: boolean;
}

/** A queue of work. */
export interface Stream {
  /** The stream's name. */
  readonly name: StreamName;
  /** An event after all work enqueued here so far. */
  record(): DeviceEvent;
  /** Makes work enqueued here from now on wait for the event. */
  wait(event: DeviceEvent): void;
}

/** The streams of a device. New work goes to the current one: `compute`, except inside {@link Streams.on}. */
export class Streams {
  readonly #streams: ReadonlyMap<StreamName, Stream>;
  #current: Stream;

  /** All streams of a device. @param make makes the stream of a name */
  constructor(make: (name: StreamName) => Stream) {
    this.#streams = new Map(STREAMS.map((name) => [name, make(name)]));
    this.#current = this.get("compute");
  }

  /** The stream of that name. */
  get(name: StreamName): Stream {
    const stream = this.#streams.get(name);
    if (stream === undefined) throw new InternalError(`no stream '${name}'`);
    return stream;
  }

  /** The stream that takes what is enqueued now. */
  get current(): Stream {
    return this.#current;
  }

  /** Calls `body`, whose work goes to stream `name`; that stream must first wait for the events on which the work depends. */
  on<T>(name: StreamName, body: () => T): T {
    const before = this.#current;
    this.#current = this.get(name);
    try {
      return body();
    } finally {
      this.#current = before;
    }
  }
}

const DONE: DeviceEvent = { done: true };

/** A stream of a device on which every call has finished when it returns. */
export function immediateStream(name: StreamName): Stream {
  return { name, record: () => DONE, wait: () => {} };
}
