/**
 * Communicators of NCCL that never block a rank forever. Calls are non-blocking, so one may be in progress for a while. The host
 * waits for NCCL, and for a card that waits for other ranks, by the control plane: the wait ends when a rank dies, is late or
 * calls something else, and when NCCL reports an error. Then this rank aborts its communicators, which ends their work on the
 * card.
 *
 * Note [Closing communicators]
 * - Sent data may stay in the sender's memory until it is received, so a communicator is destroyed only after all its ranks have
 *   finished with it. A rank waits for that when it leaves its first group, and only for a short time.
 * - Registered memory is deregistered when the card has finished with it, before the communicator is closed, and freed after.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { CudaDevice } from "../../../device/cuda/device.ts";
import { STREAMS } from "../../../device/stream.ts";
import { NCCL_CONFIG, NCCL_CONSTANTS, NCCL_STATUSES, NCCL_UNIQUE_ID } from "../../../ffi/bindings/nccl.ts";
import type { NCCL_BINDINGS } from "../../../ffi/bindings/nccl.ts";
import type { Handle, NativeAddress, Struct, Symbols } from "../../../ffi/types.ts";
import { blockFor } from "../../../runtime/clock.ts";
import type { ControlPlane } from "../../control_plane.ts";
import { attempt, exchangeOutcomes } from "../../together.ts";
import { gathersBy, type Nccl, versionOf } from "./version.ts";

/** Handle of memory that the ranks of a communicator have registered with each other. */
export type RegisteredWindow = Handle<"ncclWindow_t">;
type Comm = Handle<"ncclComm_t">;
/** A call that enqueues work and returns its status. */
export type NcclCall = (symbols: Symbols<typeof NCCL_BINDINGS>, comm: Comm, stream: Handle<"cudaStream_t">) => number;

/** Longest time that a rank waits for others to finish with a communicator. See Note [Closing communicators]. */
const CLOSING_MS = 2000;

export class Communicator {
  readonly control: ControlPlane;
  readonly #all: Communicators;
  readonly #comm: Comm;
  /** Memory that NCCL allocated, with its registration if it has one. */
  readonly #memory = new Map<NativeAddress, RegisteredWindow | undefined>();
  #isClosing = false;

  /** Use {@link Communicators}. */
  constructor(all: Communicators, control: ControlPlane, comm: Comm) {
    this.control = control;
    this.#all = all;
    this.#comm = comm;
    all.wait(() => !this.isInProgress, "communicators to be made");
    all.throwIfFailed();
  }

  /** Enqueues several calls as one on the current stream, and returns when NCCL has accepted them. */
  enqueue(...calls: readonly NcclCall[]): void {
    const { nccl: { symbols }, device: { streamHandle } } = this.#all;
    symbols.ncclGroupStart();
    for (const call of calls) call(symbols, this.#comm, streamHandle);
    const isInProgress = symbols.ncclGroupEnd() !== 0;
    if (isInProgress) this.#all.wait(() => !this.isInProgress, "work to be enqueued");
  }

  /** Splits off the communicator of a part of the ranks, which share one `color`. Every rank of this one calls it. */
  split(control: ControlPlane): Communicator {
    const { nccl } = this.#all;
    const comm = nccl.provider.out("ncclComm_t");
    const color = at(control.worldRanks, 0, "first rank");
    nccl.symbols.ncclCommSplit(this.#comm, color, control.rank, comm, this.#all.config);
    return this.#all.add(control, comm.value);
  }

  /** Allocates memory of this rank's card that may be registered. Blocks the host. */
  allocate(byteLength: number): NativeAddress {
    const { nccl: { provider, symbols } } = this.#all;
    const place = provider.out("address");
    symbols.ncclMemAlloc(place, byteLength);
    this.#memory.set(place.value, undefined);
    return place.value;
  }

  /**
   * Registers memory of all ranks, of the same length on each, so that collectives between the same offsets of it find the
   * other ranks' memory. Collective.
   *
   * @returns false if NCCL cannot use the registration
   */
  register(memory: NativeAddress, byteLength: number): boolean {
    const { nccl } = this.#all;
    const window = nccl.provider.out("ncclWindow_t");
    const flags = NCCL_CONSTANTS.NCCL_WIN_COLL_SYMMETRIC;
    nccl.need("ncclCommWindowRegister")(this.#comm, memory, byteLength, window, flags);
    this.#all.wait(() => !this.isInProgress, "memory to be registered");
    this.#all.throwIfFailed();
    const isUsed = window.value !== nccl.provider.nullAddress;
    if (isUsed) this.#memory.set(memory, window.value);
    return isUsed;
  }

  /** Frees memory that no work uses. All ranks free the same registered memory, between the same calls. */
  release(memory: NativeAddress): void {
    this.#deregister(memory);
    this.#memory.delete(memory);
    this.#all.nccl.symbols.ncclMemFree(memory);
  }

  #deregister(memory: NativeAddress): void {
    const window = this.#memory.get(memory);
    if (window === undefined) return;
    this.#all.nccl.need("ncclCommWindowDeregister")(this.#comm, window);
    this.#all.wait(() => !this.isInProgress, "memory to be deregistered");
    this.#memory.set(memory, undefined);
  }

  /** Begins to close the communicator. */
  close(): void {
    if (this.#isClosing || this.control.stopped) return;
    // If the card does not finish, the memory is freed with the communicator, which is then aborted.
    if (this.hasMemory && !this.#all.finish(() => this.control.stopped)) return;
    for (const memory of this.#memory.keys()) this.#deregister(memory);
    this.#isClosing = true;
    this.#all.nccl.symbols.ncclCommFinalize(this.#comm);
  }

  /** True while NCCL has not ended the last call that concerns this communicator alone. */
  get isInProgress(): boolean {
    return this.#status === "ncclInProgress";
  }

  /** NCCL's error since the last call; undefined if there is none. */
  get problem(): string | undefined {
    const status = this.#status;
    if (status === undefined || status === "ncclInProgress") return undefined;
    return `NCCL failed with ${status}: ${this.#all.nccl.symbols.ncclGetLastError(this.#comm)}`;
  }

  /** Frees the communicator: destroys it if all ranks have finished with it, else aborts it. */
  free(): void {
    const { symbols } = this.#all.nccl;
    if (this.#isClosing && this.#status === undefined) symbols.ncclCommDestroy(this.#comm);
    else symbols.ncclCommAbort(this.#comm);
  }

  /** True if the communicator has memory of NCCL. */
  get hasMemory(): boolean {
    return this.#memory.size > 0;
  }

  /** Frees the memory of a communicator that is freed. */
  freeMemory(): void {
    for (const memory of this.#memory.keys()) this.#all.nccl.symbols.ncclMemFree(memory);
    this.#memory.clear();
  }

  /** Name of the communicator's state; undefined for success. */
  get #status(): string | undefined {
    const { provider, symbols } = this.#all.nccl;
    const state = provider.out("i32");
    symbols.ncclCommGetAsyncError(this.#comm, state);
    return state.value === 0 ? undefined : NCCL_STATUSES[state.value] ?? `status ${state.value}`;
  }
}

/** The communicators of one world on one card. */
export class Communicators implements Disposable {
  readonly nccl: Nccl;
  readonly device: CudaDevice;
  readonly config: Struct<typeof NCCL_CONFIG>;
  readonly #control: ControlPlane;
  readonly #open = new Set<Communicator>();
  readonly #kept = new DisposableStack();

  /** Lets the host wait for the card as for other ranks. */
  constructor(nccl: Nccl, device: CudaDevice, control: ControlPlane) {
    this.nccl = nccl;
    this.device = device;
    this.config = nccl.provider.struct(NCCL_CONFIG);
    this.config.set("blocking", 0);
    if (gathersBy(versionOf(nccl)) === "copy engines") {
      this.config.set("CTAPolicy", NCCL_CONSTANTS.NCCL_CTA_POLICY_ZERO);
    }
    this.#control = control;
    this.#kept.use(device.waitBy((ready) => this.wait(ready, "enqueued work to end")));
  }

  /** Makes the communicator of all ranks. Collective. */
  join(): Communicator {
    const { rank, size } = this.#control;
    const { symbols, provider } = this.nccl;
    const id = provider.struct(NCCL_UNIQUE_ID);
    const make = (): string => {
      if (rank === 0) symbols.ncclGetUniqueId(id);
      return id.bytes.toHex();
    };
    const { notes } = exchangeOutcomes(this.#control, attempt(make), (hex) => hex);
    id.bytes.setFromHex(at(notes, 0, "unique id of rank"));
    const comm = provider.out("ncclComm_t");
    this.nccl.need("ncclCommInitRankScalable")(comm, size, rank, 1, id, this.config);
    return this.add(this.#control, comm.value);
  }

  /** Adds a communicator that is being made, and waits until it is ready. */
  add(control: ControlPlane, comm: Comm): Communicator {
    const made = new Communicator(this, control, comm);
    this.#open.add(made);
    return made;
  }

  /**
   * Returns once `ready()` holds, which work on the card or NCCL makes true.
   *
   * @throws {CollectiveError} if a rank died, is late beyond the timeout or calls something else, or NCCL reports an error
   */
  wait(ready: () => boolean, stage: string): void {
    try {
      this.#control.watch(() => ready() || this.#failed !== undefined, stage);
      if (!ready()) this.throwIfFailed();
    } catch (error) {
      this.#abort();
      throw error;
    }
  }

  /** @throws {CollectiveError} if NCCL reports an error */
  throwIfFailed(): void {
    const failed = this.#failed;
    if (failed?.problem !== undefined) failed.control.stop(failed.problem);
  }

  /** Frees all communicators. See Note [Closing communicators]. */
  [Symbol.dispose](): void {
    this.#kept.dispose();
    for (const one of this.#open) one.close();
    poll(() => [...this.#open].every((one) => !one.isInProgress), () => this.#control.stopped);
    this.#abort();
  }

  /** Waits up to {@link CLOSING_MS} until the card has finished all enqueued work; returns false if it has not. */
  finish(isHopeless: () => boolean): boolean {
    const { streams } = this.device;
    const ends = STREAMS.map((name) => streams.get(name).record());
    return poll(() => ends.every(({ done }) => done), isHopeless);
  }

  get #failed(): Communicator | undefined {
    for (const one of this.#open) if (one.problem !== undefined) return one;
    return undefined;
  }

  #abort(): void {
    for (const one of this.#open) one.free();
    // Enqueued work may still read the memory. If the card does not finish, the driver frees it with the process.
    const withMemory = [...this.#open].filter(({ hasMemory }) => hasMemory);
    if (withMemory.length > 0 && this.finish(() => false)) { for (const one of withMemory) one.freeMemory(); }
    this.#open.clear();
  }
}

/** Checks `holds` until it is true; returns false after {@link CLOSING_MS}, or as soon as `isHopeless`. */
function poll(holds: () => boolean, isHopeless: () => boolean): boolean {
  const end = performance.now() + CLOSING_MS;
  while (!holds()) {
    if (isHopeless() || performance.now() >= end) return false;
    blockFor(1);
  }
  return true;
}
