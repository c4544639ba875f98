/**
 * Requests of MPI under way, in slots that never move, as MPI writes to them while they are. A request is only tested, never waited
 * for: a thread that blocks in MPI hears of no dead rank, and takes the core that the awaited rank may need.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { MPI_HANDLE_BYTES, MPI_STATUS_BYTES } from "../../../ffi/bindings/mpi.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import type { OpenMpiLibrary } from "./library.ts";

/** Slots that are allocated at a time. */
const BLOCK_SLOTS = 256;

/** Slots of requests. */
export class RequestSlots {
  readonly #library: OpenMpiLibrary;
  /** Keeps the memory of slots reachable. */
  readonly #blocks: BigUint64Array[] = [];
  readonly #free: NativeAddress[] = [];
  readonly #outcome: Int32Array;
  readonly #flag: NativeAddress;
  readonly #status: NativeAddress;

  constructor(library: OpenMpiLibrary) {
    this.#library = library;
    const { provider } = library;
    const memory = new ArrayBuffer(8 + MPI_STATUS_BYTES);
    this.#outcome = new Int32Array(memory);
    this.#flag = provider.addressOf(memory);
    this.#status = provider.offset(this.#flag, 8);
  }

  /** Begins a request. @param begin makes the call, with the address of its request */
  begin(begin: (request: NativeAddress) => void): NativeAddress {
    const slot = this.#take();
    try {
      begin(slot);
      return slot;
    } catch (error) {
      this.#free.push(slot);
      throw error;
    }
  }

  /** True if a request has finished; its slot is free then. @throws {NativeError} if it failed */
  test(slot: NativeAddress): boolean {
    this.#library.symbols.MPI_Test(slot, this.#flag, this.#status);
    if (at(this.#outcome, 0, "flag") === 0) return false;
    this.#free.push(slot);
    return true;
  }

  /** Gives up a receive that will not come, or a request whose end no longer matters. The slot is not used again. */
  abandon(slot: NativeAddress, isReceive: boolean): void {
    const { symbols } = this.#library;
    if (isReceive) symbols.MPI_Cancel(slot);
    symbols.MPI_Request_free(slot);
  }

  #take(): NativeAddress {
    const free = this.#free.pop();
    if (free !== undefined) return free;
    const block = new BigUint64Array(BLOCK_SLOTS);
    this.#blocks.push(block);
    const { provider } = this.#library;
    const base = provider.addressOf(block);
    for (let slot = BLOCK_SLOTS - 1; slot > 0; slot--) this.#free.push(provider.offset(base, slot * MPI_HANDLE_BYTES));
    return base;
  }
}
