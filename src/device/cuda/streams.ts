/**
 * The streams of a card, and the events that other streams wait for.
 *
 * Note [Events are used again]: a stream reuses a ring of events, so an event that is never waited for costs nothing. If an event
 * was recorded again meanwhile, waiting for it waits for the later record.
 *
 * Note [Points and captures]: a graph comes after all work enqueued before its launch, and before all work enqueued after it, on
 * any stream. So
 * - while work is captured, a wait for an earlier event does nothing;
 * - after a capture, a wait for its events or for earlier ones waits for the event after the last launch, as CUDA allows no query
 *   of a graph's events.
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

/** Returns once `ready()` holds, or throws: the host's wait for a card whose work depends on other ranks. */
export type HostWait = (ready: () => boolean) => void;

/** A stream of the card. */
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
  /** The record after the last capture or launch, which replaces all earlier ones: see Note [Points and captures]. */
  #fence = 0;

  /**
   * Makes a stream that does not wait for CUDA's default stream; `gather` and `reduce` have the highest priority.
   *
   * @param hostWait returns the host's wait; undefined to wait without limit
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

  /** The stream as CUDA knows it. @throws {UseAfterDisposeError} if its device was disposed */
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

  /** Records the one mark of the stream, which later records do not move; returns a function by which the host waits for it. */
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

  /** Begins to capture the work of this stream, as part of a capture of this or another stream. */
  beginCapture(): void {
    this.#beforeCapture = this.#recorded;
  }

  /** Called when the capture has ended, or the graph was launched. See Note [Points and captures]. */
  renewFence(): void {
    this.#beforeCapture = undefined;
    this.record();
    this.#fence = this.#recorded;
  }

  /** True if the work before a record is done. */
  isDone(number: number): boolean {
    if (number <= this.#done) return true;
    if (this.#beforeCapture !== undefined) return false; // CUDA allows no query during a capture
    const slot = this.#slot(Math.max(number, this.#fence));
    if (this.#cudart.symbols.cudaEventQuery(slot.event) !== 0) return false;
    this.#done = slot.number;
    return true;
  }

  /** Makes the host wait for the work before an event of this device. */
  waitOnHost(event: DeviceEvent): void {
    if (!(event instanceof CudaEvent)) throw new InternalError("the host waits for an event of another device");
    const hostWait = this.#hostWait();
    if (hostWait !== undefined) return hostWait(() => event.done);
    const slot = this.#slot(Math.max(event.number, this.#fence));
    this.#cudart.symbols.cudaEventSynchronize(slot.event);
    this.#done = Math.max(this.#done, slot.number);
  }

  /** Waits for all enqueued work. */
  synchronize(): void {
    const hostWait = this.#hostWait();
    if (hostWait !== undefined) {
      const end = this.record();
      return hostWait(() => end.done);
    }
    this.#cudart.symbols.cudaStreamSynchronize(this.handle);
    this.#done = this.#recorded;
  }

  destroy(): void {
    const { symbols } = this.#cudart;
    const { handle } = this;
    this.#handle = undefined;
    // All enqueued work is done, or never will be.
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
