/**
 * Streams: lines of work on a device, each in its own order, which go on side by side until one waits for an event of another.
 * The host enqueues and does not wait.
 *
 * @module
 */

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
  readonly name: StreamName;
  /** An event after all that has been enqueued here. */
  record(): DeviceEvent;
  /** Work enqueued here from now on comes after the event. */
  wait(event: DeviceEvent): void;
}

/** The streams of a device on which every call has finished when it returns. */
export class ImmediateStreams {
  readonly #streams: ReadonlyMap<StreamName, Stream> = new Map(
    STREAMS.map((name) => [name, new ImmediateStream(name)]),
  );

  /** The stream of that name. */
  get(name: StreamName): Stream {
    return this.#streams.get(name) ?? new ImmediateStream(name);
  }
}

const DONE: DeviceEvent = { done: true };

class ImmediateStream implements Stream {
  readonly name: StreamName;

  constructor(name: StreamName) {
    this.name = name;
  }

  record(): DeviceEvent {
    return DONE;
  }

  wait(): void {}
}
