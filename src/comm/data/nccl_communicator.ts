/**
 * Communicators of NCCL that never keep a rank for good. They do not block, so a call may be in progress for a while. The host
 * waits for NCCL, and for a card that waits for other ranks, by the control plane: such a wait ends when a rank dies, is late or
 * calls something else, and when NCCL has found an error. Whatever stops this rank aborts its communicators, which ends what
 * they have on the card.
 *
 * Note [Giving up communicators]: what a rank has sent may lie in its own memory until it is received, so a communicator is
 * destroyed when all its ranks have finished with it. No rank waits for that before it leaves its first group, and then not long.
 * Registered memory is deregistered when the card has finished with it, before the communicator is given up, and freed after that.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { CudaDevice } from "../../device/cuda/device.ts";
import { STREAMS } from "../../device/stream.ts";
import { NCCL_CONFIG, NCCL_CONSTANTS, NCCL_STATUSES, NCCL_UNIQUE_ID } from "../../ffi/bindings/nccl.ts";
import type { NCCL_BINDINGS } from "../../ffi/bindings/nccl.ts";
import type { Handle, NativeAddress, Struct, Symbols } from "../../ffi/types.ts";
import { blockFor } from "../../runtime/clock.ts";
import type { ControlPlane } from "../control_plane.ts";
import { attempt, exchangeOutcomes } from "../together.ts";
import { gathersBy, type Nccl, versionOf } from "./nccl_version.ts";

/** Memory that the ranks of a communicator have registered with each other. */
export type RegisteredWindow = Handle<"ncclWindow_t">;
/** A communicator as NCCL knows it. */
type Comm = Handle<"ncclComm_t">;
/** A call that enqueues work; gives its status. */
export type NcclCall = (symbols: Symbols<typeof NCCL_BINDINGS>, comm: Comm, stream: Handle<"cudaStream_t">) => number;

/** Longest time that a rank waits for others to finish with a communicator. See Note [Giving up communicators]. */
const CLOSING_MS = 2000;

/** One group's ranks, as NCCL joins them. */
export class Communicator {
  readonly control: ControlPlane;
  readonly #all: Communicators;
  readonly #comm: Comm;
  /** Memory that NCCL gave, and what it is registered as. */
  readonly #memory = new Map<NativeAddress, RegisteredWindow | undefined>();
  #isClosing = false;

  /** Use {@link Communicators}. */
  constructor(all: Communicators, control: ControlPlane, comm: Comm) {
    this.control = control;
    this.#all = all;
    this.#comm = comm;
    all.wait(() => !this.isInProgress, "making communicators");
    all.throwIfFailed();
  }

  /** Makes calls as one, on the stream under way, and returns when NCCL has taken them. */
  enqueue(...calls: readonly NcclCall[]): void {
    const { nccl: { symbols }, device: { streamHandle } } = this.#all;
    symbols.ncclGroupStart();
    for (const call of calls) call(symbols, this.#comm, streamHandle);
    const isInProgress = symbols.ncclGroupEnd() !== 0;
    if (isInProgress) this.#all.wait(() => !this.isInProgress, "enqueuing");
  }

  /** A communicator of a part of the ranks, those with one `color`. Every rank of this one calls it. */
  split(control: ControlPlane): Communicator {
    const { nccl } = this.#all;
    const comm = nccl.provider.out("ncclComm_t");
    const color = at(control.worldRanks, 0, "first rank");
    nccl.symbols.ncclCommSplit(this.#comm, color, control.rank, comm, this.#all.config);
    return this.#all.add(control, comm.value);
  }

  /** Memory of this rank's card that may be registered. The host waits for it. */
  allocate(byteLength: number): NativeAddress {
    const { nccl: { provider, symbols } } = this.#all;
    const place = provider.out("address");
    symbols.ncclMemAlloc(place, byteLength);
    this.#memory.set(place.value, undefined);
    return place.value;
  }

  /**
   * Registers memory of all ranks, as long on each, so that collectives between the same places of it find the other ranks'.
   * Collective.
   *
   * @returns whether NCCL had a use for it
   */
  register(memory: NativeAddress, byteLength: number): boolean {
    const { nccl } = this.#all;
    const window = nccl.provider.out("ncclWindow_t");
    const flags = NCCL_CONSTANTS.NCCL_WIN_COLL_SYMMETRIC;
    nccl.need("ncclCommWindowRegister")(this.#comm, memory, byteLength, window, flags);
    this.#all.wait(() => !this.isInProgress, "registering memory");
    this.#all.throwIfFailed();
    const isUsed = window.value !== nccl.provider.nullAddress;
    if (isUsed) this.#memory.set(memory, window.value);
    return isUsed;
  }

  /** Gives back memory that nothing uses any more. Of what is registered all ranks give back the same, between the same calls. */
  release(memory: NativeAddress): void {
    this.#deregister(memory);
    this.#memory.delete(memory);
    this.#all.nccl.symbols.ncclMemFree(memory);
  }

  #deregister(memory: NativeAddress): void {
    const window = this.#memory.get(memory);
    if (window === undefined) return;
    this.#all.nccl.need("ncclCommWindowDeregister")(this.#comm, window);
    this.#all.wait(() => !this.isInProgress, "deregistering memory");
    this.#memory.set(memory, undefined);
  }

  /** Begins to give it up. */
  close(): void {
    if (this.#isClosing || this.control.stopped) return;
    // What the card has not finished with goes with the communicator, by force.
    if (this.hasMemory && !this.#all.finish(() => this.control.stopped)) return;
    for (const memory of this.#memory.keys()) this.#deregister(memory);
    this.#isClosing = true;
    this.#all.nccl.symbols.ncclCommFinalize(this.#comm);
  }

  /** Whether NCCL has not come to the end of the last call that concerns it alone. */
  get isInProgress(): boolean {
    return this.#status === "ncclInProgress";
  }

  /** What went wrong since the last call, if anything. */
  get problem(): string | undefined {
    const status = this.#status;
    if (status === undefined || status === "ncclInProgress") return undefined;
    return `NCCL failed with ${status}: ${this.#all.nccl.symbols.ncclGetLastError(this.#comm)}`;
  }

  /** Frees it, by force unless all ranks have finished with it. */
  free(): void {
    const { symbols } = this.#all.nccl;
    if (this.#isClosing && this.#status === undefined) symbols.ncclCommDestroy(this.#comm);
    else symbols.ncclCommAbort(this.#comm);
  }

  /** Whether it has memory of NCCL. */
  get hasMemory(): boolean {
    return this.#memory.size > 0;
  }

  /** Frees its memory, of a communicator that is freed. */
  freeMemory(): void {
    for (const memory of this.#memory.keys()) this.#all.nccl.symbols.ncclMemFree(memory);
    this.#memory.clear();
  }

  /** The name of its state; undefined for success. */
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
    this.#kept.use(device.waitBy((ready) => this.wait(ready, "computing")));
  }

  /** The communicator of all ranks. Collective. */
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

  /** Takes a communicator in that is being made, and waits until it is. */
  add(control: ControlPlane, comm: Comm): Communicator {
    const made = new Communicator(this, control, comm);
    this.#open.add(made);
    return made;
  }

  /**
   * Returns once `ready()` holds, which work on the card or NCCL makes true.
   *
   * @throws {CollectiveError} if a rank died, is late beyond the timeout or calls something else, or NCCL has found an error
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

  /** @throws {CollectiveError} if NCCL has found an error */
  throwIfFailed(): void {
    const failed = this.#failed;
    if (failed?.problem !== undefined) failed.control.stop(failed.problem);
  }

  /** Frees all. See Note [Giving up communicators]. */
  [Symbol.dispose](): void {
    this.#kept.dispose();
    for (const one of this.#open) one.close();
    comesToPass(() => [...this.#open].every((one) => !one.isInProgress), () => this.#control.stopped);
    this.#abort();
  }

  /** Waits, not long, until the card has finished with all that was enqueued; returns whether it has. */
  finish(isInVain: () => boolean): boolean {
    const { streams } = this.device;
    const ends = STREAMS.map((name) => streams.get(name).record());
    return comesToPass(() => ends.every(({ done }) => done), isInVain);
  }

  get #failed(): Communicator | undefined {
    for (const one of this.#open) if (one.problem !== undefined) return one;
    return undefined;
  }

  #abort(): void {
    for (const one of this.#open) one.free();
    // What computes may still read it. What a card does not come to the end of, the driver frees with the process.
    const withMemory = [...this.#open].filter(({ hasMemory }) => hasMemory);
    if (withMemory.length > 0 && this.finish(() => false)) { for (const one of withMemory) one.freeMemory(); }
    this.#open.clear();
  }
}

/** Whether something comes to pass before a rank has waited too long for others, or waits in vain. */
function comesToPass(isSo: () => boolean, isInVain: () => boolean): boolean {
  const end = performance.now() + CLOSING_MS;
  while (!isSo()) {
    if (isInVain() || performance.now() >= end) return false;
    blockFor(1);
  }
  return true;
}
