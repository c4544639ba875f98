/**
 * Streams: lines of work on a device, each in its own order, which go on side by side until one waits for an event of another.
 * The host enqueues and does not wait.
 *
 * @module
 */
import { InternalError } from "../errors.ts";

/** What a stream is for. */
export const STREAMS = ["compute", "gather", "reduce", "copy"] as const;
/** Name of a stream. */
export type StreamName = typeof STREAMS[number];

/** A point in a stream's order. */
export interface DeviceEvent {
  /** Whether all work before it has been done. Never waits. */
  readonly done: boolean;
}

/** One line of work. */
export interface Stream {
  /** The stream's name. */
  readonly name: StreamName;
  /** An event after all that has been enqueued here. */
  record(): DeviceEvent;
  /** Work enqueued here from now on comes after the event. */
  wait(event: DeviceEvent): void;
}

/** The streams of a device, one of which takes what is enqueued: `compute` but inside {@link Streams.on}. */
export class Streams {
  readonly #streams: ReadonlyMap<StreamName, Stream>;
  #current: Stream;

  /** Makes streams when they are asked for. */
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

  /** Runs `body`, which enqueues on another stream; events that it depends on must be waited for there. */
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
