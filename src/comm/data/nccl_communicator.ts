/**
 * Communicators of NCCL that never keep a rank for good. They do not block, so a call may be in progress for a while. The host
 * waits for NCCL, and for a card that waits for other ranks, by the control plane: such a wait ends when a rank dies, is late or
 * calls something else, and when NCCL has found an error. Whatever stops this rank aborts its communicators, which ends what
 * they have on the card.
 *
 * Note [Giving up communicators]: what a rank has sent may lie in its own memory until it is received, so a communicator is
 * destroyed when all its ranks have finished with it. No rank waits for that before it leaves its first group, and then not long.
 *
 * @module
 */
import { NCCL_CONFIG, NCCL_STATUSES, NCCL_UNIQUE_ID } from "../../../ffi/bindings/nccl.ts";
import type { NCCL_BINDINGS } from "../../../ffi/bindings/nccl.ts";
import type { Handle, Library, Struct, Symbols } from "../../../ffi/types.ts";
import { at } from "../../at.ts";
import type { CudaDevice } from "../../device/cuda/device.ts";
import type { ControlPlane } from "../control_plane.ts";
import { attempt, settle } from "../together.ts";

/** NCCL, loaded. */
export type Nccl = Library<typeof NCCL_BINDINGS>;
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

  /** Begins to give it up. */
  close(): void {
    if (this.#isClosing || this.control.stopped) return;
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
    const { notes } = settle(this.#control, attempt(make), (hex) => hex);
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
    const [end, never] = [performance.now() + CLOSING_MS, new Int32Array(new SharedArrayBuffer(4))];
    const isDone = (): boolean => [...this.#open].every((one) => !one.isInProgress);
    while (!this.#control.stopped && !isDone() && performance.now() < end) Atomics.wait(never, 0, 0, 1);
    this.#abort();
  }

  get #failed(): Communicator | undefined {
    for (const one of this.#open) if (one.problem !== undefined) return one;
    return undefined;
  }

  #abort(): void {
    for (const one of this.#open) one.free();
    this.#open.clear();
  }
}
