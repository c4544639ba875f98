/**
 * The streams of a card and the points in them that others wait for.
 *
 * Note [Events are used again]: a stream has a ring of events, so that what waits for none of them costs nothing to forget.
 * A point whose event has been recorded anew since is waited for by the later record, which comes after it.
 *
 * Note [Points and captures]: a graph comes after all that was enqueued before its launch and before all that is enqueued after it,
 * on any stream. So while work is captured, points from before are waited for by waiting for nothing; and after a capture its
 * points, and those before, are waited for by the point after the last launch, as CUDA lets no one ask for an event of a graph.
 *
 * @module
 */
import { at } from "../../at.ts";
import { InternalError, UseAfterDisposeError } from "../../errors.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { Handle } from "../../ffi/types.ts";
import type { DeviceEvent, Stream, StreamName } from "../stream.ts";
import type { Cudart } from "./libraries.ts";

/** Events of a stream. */
const RING = 256;

/** An event of a ring, and the number of the record that it stands for. */
interface EventSlot {
  readonly event: Handle<"cudaEvent_t">;
  number: number;
}

/** A point in a stream's order. */
class CudaEvent implements DeviceEvent {
  readonly stream: CudaStream;
  readonly number: number;

  constructor(stream: CudaStream, number: number) {
    this.stream = stream;
    this.number = number;
  }

  get done(): boolean {
    return this.stream.isDone(this.number);
  }
}

/** Returns once `ready()` holds, or throws: how the host waits for a card whose work depends on other ranks. */
export type HostWait = (ready: () => boolean) => void;

/** One line of work on the card. */
export class CudaStream implements Stream {
  readonly name: StreamName;
  #handle: Handle<"cudaStream_t"> | undefined;
  readonly #cudart: Cudart;
  readonly #hostWait: () => HostWait | undefined;
  readonly #ring: EventSlot[] = [];
  #mark: Handle<"cudaEvent_t"> | undefined;
  #recorded = 0;
  #done = 0;
  /** The newest record before the capture under way. */
  #beforeCapture: number | undefined;
  /** The record after the last capture or launch, which stands for all before it: see Note [Points and captures]. */
  #fence = 0;

  /**
   * Does not wait for the stream of the same number as that of other libraries, and goes first if it brings data.
   *
   * @param hostWait how the host waits, if not as long as it takes
   */
  constructor(name: StreamName, cudart: Cudart, hostWait: () => HostWait | undefined) {
    this.name = name;
    this.#cudart = cudart;
    this.#hostWait = hostWait;
    const { provider, symbols } = cudart;
    const [least, greatest, handle] = [provider.out("i32"), provider.out("i32"), provider.out("cudaStream_t")];
    symbols.cudaDeviceGetStreamPriorityRange(least, greatest);
    const priority = name === "gather" || name === "reduce" ? greatest.value : least.value;
    symbols.cudaStreamCreateWithPriority(handle, CUDART_CONSTANTS.cudaStreamNonBlocking, priority);
    this.#handle = handle.value;
  }

  /** The stream as CUDA knows it. @throws {UseAfterDisposeError} if it was given back with its device */
  get handle(): Handle<"cudaStream_t"> {
    if (this.#handle === undefined) throw new UseAfterDisposeError("Cannot use a CUDA device after it was disposed");
    return this.#handle;
  }

  record(): DeviceEvent {
    const number = ++this.#recorded;
    const place = number % RING;
    const { handle } = this;
    const slot = this.#ring[place] ??= { event: this.#makeEvent(), number };
    this.#cudart.symbols.cudaEventRecord(slot.event, handle);
    slot.number = number;
    return new CudaEvent(this, number);
  }

  /** A point of which the stream has one at a time, whatever is recorded since; returns what lets the host wait for it. */
  mark(): () => void {
    const { symbols } = this.#cudart;
    const event = this.#mark ??= this.#makeEvent();
    symbols.cudaEventRecord(event, this.handle);
    const isDone = (): boolean => symbols.cudaEventQuery(event) === 0;
    return () => {
      const hostWait = this.#hostWait();
      if (isDone()) return;
      if (hostWait === undefined) symbols.cudaEventSynchronize(event);
      else hostWait(isDone);
    };
  }

  wait(event: DeviceEvent): void {
    if (!(event instanceof CudaEvent)) throw new InternalError("a stream waits for an event of another device");
    if (event.stream === this || event.number <= event.stream.#done) return;
    const { stream } = event;
    if (stream.#beforeCapture !== undefined && event.number <= stream.#beforeCapture) return;
    const { event: point } = stream.#slot(Math.max(event.number, stream.#fence));
    this.#cudart.symbols.cudaStreamWaitEvent(this.handle, point, 0);
  }

  /** What is enqueued from now on is captured, in a capture that another stream begins or this one does. */
  beginCapture(): void {
    this.#beforeCapture = this.#recorded;
  }

  /** The capture has ended, or the graph was launched. See Note [Points and captures]. */
  renewFence(): void {
    this.#beforeCapture = undefined;
    this.record();
    this.#fence = this.#recorded;
  }

  /** Whether the work before a record has been done. */
  isDone(number: number): boolean {
    if (number <= this.#done) return true;
    if (this.#beforeCapture !== undefined) return false; // CUDA lets no one ask meanwhile
    const slot = this.#slot(Math.max(number, this.#fence));
    if (this.#cudart.symbols.cudaEventQuery(slot.event) !== 0) return false;
    this.#done = slot.number;
    return true;
  }

  /** Lets the host wait for what came before one of its events. */
  waitOnHost(event: DeviceEvent): void {
    if (!(event instanceof CudaEvent)) throw new InternalError("the host waits for an event of another device");
    const hostWait = this.#hostWait();
    if (hostWait !== undefined) return hostWait(() => event.done);
    const slot = this.#slot(Math.max(event.number, this.#fence));
    this.#cudart.symbols.cudaEventSynchronize(slot.event);
    this.#done = Math.max(this.#done, slot.number);
  }

  /** Waits for all that has been enqueued. */
  synchronize(): void {
    const hostWait = this.#hostWait();
    if (hostWait !== undefined) {
      const end = this.record();
      return hostWait(() => end.done);
    }
    this.#cudart.symbols.cudaStreamSynchronize(this.handle);
    this.#done = this.#recorded;
  }

  /** Gives the stream back. */
  destroy(): void {
    const { symbols } = this.#cudart;
    const { handle } = this;
    this.#handle = undefined;
    // Whatever was enqueued here has been done, or never will be.
    this.#done = this.#recorded;
    if (this.#mark !== undefined) symbols.cudaEventDestroy(this.#mark);
    for (const slot of this.#ring) if (slot !== undefined) symbols.cudaEventDestroy(slot.event);
    symbols.cudaStreamDestroy(handle);
  }

  /** The event of a record, or of a later one. */
  #slot(number: number): EventSlot {
    return at(this.#ring, number % RING, "event");
  }

  #makeEvent(): Handle<"cudaEvent_t"> {
    const event = this.#cudart.provider.out("cudaEvent_t");
    this.#cudart.symbols.cudaEventCreateWithFlags(event, CUDART_CONSTANTS.cudaEventDisableTiming);
    return event.value;
  }
}
