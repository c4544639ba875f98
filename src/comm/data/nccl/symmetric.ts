/**
 * Memory that the ranks of a communicator register with each other, so that NCCL moves it by copy engines or by its kernels for
 * symmetric memory: windows of parameters, and slots into which units gather. Registering is collective, the memory stays until
 * the group is disposed, and the device's allocator counts it.
 *
 * Note [Registered memory is the same on all ranks]: NCCL derives the address of another rank's memory from this rank's. So
 * - ranks register blocks of the same sizes in one order, gather between the same blocks, and free blocks between the same calls;
 * - windows are disposed in any order, and cards finish with them at different times: at each registration the ranks exchange the
 *   numbers of the blocks that their cards have finished with, and free those that all ranks name.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { MemoryKind } from "../../../device/allocator.ts";
import type { CudaDevice } from "../../../device/cuda/device.ts";
import type { DevicePtr } from "../../../device/device.ts";
import { type DeviceEvent, STREAMS } from "../../../device/stream.ts";
import { NativeError } from "../../../errors.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import type { GatherMemory } from "../../data_plane.ts";
import { attempt, exchangeOutcomes } from "../../together.ts";
import { GatherSlots, registeredBytes } from "../gather_slots.ts";
import type { Communicator } from "./communicator.ts";

/** A block of memory that all ranks have registered. */
interface RegisteredMemory {
  readonly ptr: DevicePtr;
  readonly address: NativeAddress;
  /** Events after the last work that uses it; undefined while it is in use. */
  ends: readonly DeviceEvent[] | undefined;
}

/** The note that ranks exchange before they register a block. */
interface Note {
  readonly byteLength: number;
  /** Numbers of the blocks that this rank's card has finished with. */
  readonly finished: readonly number[];
}

/** The way to switch registration off. */
const REMEDY = "Set NCCL_WIN_ENABLE=0 for all ranks to gather without symmetric memory";

/** The registered memory of one communicator. */
export class SymmetricMemory implements Disposable {
  readonly #device: CudaDevice;
  readonly #communicator: Communicator;
  readonly #slots: GatherSlots;
  /** The blocks, by numbers that are the same on all ranks. */
  readonly #pieces = new Map<number, RegisteredMemory>();
  #number = 0;
  /** True after NCCL could not use a registration: then nothing more is registered. */
  #isRefused = false;

  constructor(device: CudaDevice, communicator: Communicator) {
    this.#device = device;
    this.#communicator = communicator;
    this.#slots = new GatherSlots(device, (byteLength, owner, kind) => this.#make(byteLength, owner, kind)?.ptr);
  }

  /** Allocates a window's memory, which `close` frees. Collective. */
  openWindow(byteLength: number, owner: string): { readonly ptr: DevicePtr; readonly close: () => void } {
    const { allocator, streams } = this.#device;
    const piece = this.#make(registeredBytes(byteLength), owner, "parameters");
    if (piece === undefined) {
      const ptr = allocator.allocate(byteLength, owner, "parameters");
      return { ptr, close: () => allocator.free(ptr) };
    }
    return { ptr: piece.ptr, close: () => void (piece.ends ??= STREAMS.map((name) => streams.get(name).record())) };
  }

  gatherMemory(): GatherMemory {
    const slots = this.#slots.open();
    return { ...slots, grows: (byteLength) => !this.#isRefused && slots.grows(byteLength) };
  }

  /** Number of the slot that begins at `ptr`, from 1; 0 if none does. */
  placeOf(ptr: DevicePtr): number {
    return this.#slots.numberOf(ptr);
  }

  /** Uncounts the memory; NCCL keeps it as long as the communicator. */
  [Symbol.dispose](): void {
    for (const { ptr } of this.#pieces.values()) this.#device.allocator.disown(ptr);
    this.#pieces.clear();
  }

  /** Makes a block; undefined where NCCL cannot use it. See Note [Registered memory is the same on all ranks]. */
  #make(byteLength: number, owner: string, kind: MemoryKind): RegisteredMemory | undefined {
    if (this.#isRefused) return undefined;
    const { allocator, traits: { hostWork }, provider } = this.#device;
    hostWork.refuse(`memory for '${owner}' is registered with NCCL in it, more than the steps before it had`);
    const { control } = this.#communicator;
    const allocate = (): Pick<RegisteredMemory, "ptr" | "address"> => {
      let address: NativeAddress = provider.nullAddress;
      const ptr = allocator.adoptOutside(byteLength, owner, kind, (size) => {
        address = this.#communicator.allocate(size);
        return provider.numberOf(address);
      });
      return { ptr, address };
    };
    const finished = [...this.#pieces].filter(([, { ends }]) => ends?.every(({ done }) => done)).map(([number]) =>
      number
    );
    const note: Note = { byteLength, finished };
    const { value: made, notes } = exchangeOutcomes(control, attempt(allocate), () => JSON.stringify(note));
    const all = notes.map((text): Note => JSON.parse(text));
    const other = all.findIndex((theirs) => theirs.byteLength !== byteLength);
    if (other >= 0) {
      const [own, another] = [control.rank, other].map((rank) => `rank ${control.worldRank(rank)}`);
      throw control.failure(
        `${own} registers ${byteLength} bytes for '${owner}', but ${another} ${
          at(all, other, "note of rank").byteLength
        }`,
      );
    }
    for (const number of finished) if (all.every((theirs) => theirs.finished.includes(number))) this.#release(number);
    const isUsed = this.#register(made.address, byteLength);
    const { notes: uses } = exchangeOutcomes(control, attempt(() => isUsed), String);
    if (uses.every((use) => use === "true")) {
      const piece: RegisteredMemory = { ...made, ends: undefined };
      this.#pieces.set(this.#number++, piece);
      return piece;
    }
    this.#isRefused = true;
    this.#communicator.release(made.address);
    allocator.disown(made.ptr);
    if (control.worldRank(control.rank) === 0) {
      control.report(
        `NCCL cannot use symmetric memory between the ranks of '${control.name}'; gathers run as kernels`,
      );
    }
    return undefined;
  }

  /** Registers this rank's memory together with the other ranks'. */
  #register(address: NativeAddress, byteLength: number): boolean {
    try {
      return this.#communicator.register(address, byteLength);
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      this.#communicator.control.stop(`${error.message}. ${REMEDY}`);
    }
  }

  #release(number: number): void {
    const piece = this.#pieces.get(number);
    if (piece === undefined) return;
    this.#pieces.delete(number);
    this.#communicator.release(piece.address);
    this.#device.allocator.disown(piece.ptr);
  }
}
