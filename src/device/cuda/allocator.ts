/**
 * The memory of a card: the driver's own pool, which keeps what is freed and gives it out again in the order of streams. A block
 * belongs to the stream on which it is allocated until an event says otherwise, and it is freed in the order of the stream on
 * which that happens. What is accounted here is what tensors hold.
 *
 * @module
 */
import { CUDART_CONSTANTS } from "../../../ffi/bindings/cudart.ts";
import type { Handle, Out } from "../../../ffi/types.ts";
import { NativeError } from "../../errors.ts";
import { Allocator, type MemoryKind } from "../allocator.ts";
import { type DevicePtr, devicePtr } from "../device.ts";
import { GraphMemory } from "./graph_memory.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

/** One past the last address of memory that is only counted. */
const ENDLESS = 2 ** 52;

/** Memory of a graph, and what it may read that was freed while it was captured. */
interface GraphBlock {
  readonly memory: GraphMemory;
  /** What is done when it is gone. */
  readonly kept: (() => void)[];
  /** Whether the graph is gone, so that what is left of it goes with the last block. */
  isClosed: boolean;
}

/** Hands out blocks of a card's memory. */
export class CudaAllocator extends Allocator {
  readonly #name: string;
  readonly #cudart: Cudart;
  readonly #stream: () => CudaStream;
  /** Where the driver writes the address of a block. */
  readonly #place: Out<"address">;
  readonly #pool: Handle<"cudaMemPool_t">;
  readonly #graphs = new Set<GraphBlock>();
  /** Where blocks of the driver's pool begin that have not gone back to it. */
  readonly #taken = new Set<number>();
  #isClosed = false;
  /** What is being captured into. */
  #capturing: GraphBlock | undefined;
  /** Where it is counted what a graph would take, and the blocks that stand for those there are. */
  #rehearsal: { readonly memory: GraphMemory; readonly blocks: Map<DevicePtr, DevicePtr> } | undefined;

  /**
   * Makes the driver keep what is freed.
   *
   * @param capacity bytes that it may give out
   * @param stream the one under way
   */
  constructor(name: string, index: number, capacity: number, cudart: Cudart, stream: () => CudaStream) {
    super(name, 0, capacity);
    this.#name = name;
    this.#cudart = cudart;
    this.#place = cudart.provider.out("address");
    this.#stream = stream;
    const pool = cudart.provider.out("cudaMemPool_t");
    cudart.symbols.cudaDeviceGetDefaultMemPool(pool, index);
    this.#pool = pool.value;
    const all = BigUint64Array.of(2n ** 64n - 1n);
    cudart.symbols.cudaMemPoolSetAttribute(pool.value, CUDART_CONSTANTS.cudaMemPoolAttrReleaseThreshold, all);
  }

  override allocate(bytes: number, owner: string, kind?: MemoryKind, alignment?: number): DevicePtr {
    if (this.#capturing !== undefined) return this.#capturing.memory.allocate(bytes, owner, kind, alignment);
    const ptr = super.allocate(bytes, owner, kind, alignment);
    this.#rehearsal?.blocks.set(ptr, this.#rehearsal.memory.allocate(bytes, owner, kind, alignment));
    return ptr;
  }

  override free(ptr: DevicePtr): void {
    for (const block of this.#graphs) {
      if (!block.memory.has(ptr)) continue;
      block.memory.free(ptr);
      return this.#endBlock(block);
    }
    if (this.#capturing !== undefined) return void this.#capturing.kept.push(() => this.free(ptr));
    const [rehearsal, counted] = [this.#rehearsal, this.#rehearsal?.blocks.get(ptr)];
    if (counted !== undefined) {
      rehearsal?.memory.free(counted);
      rehearsal?.blocks.delete(ptr);
    }
    super.free(ptr);
  }

  /**
   * Gives the driver all of its pool that is given out or kept; what is freed later is only counted. Nothing may be under way. Blocks
   * of {@link adoptOutside} are not the pool's, and stay.
   */
  close(): void {
    for (const start of this.#taken) this.release(start);
    this.#isClosed = true;
    this.#stream().synchronize();
    this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
  }

  /** Counts what `work` would take in a graph. */
  rehearse<T>(work: () => T): { readonly value: T; readonly bytes: number } {
    const memory = new GraphMemory(this.#name, 0, ENDLESS, this.#stream, () => false);
    this.#rehearsal = { memory, blocks: new Map() };
    try {
      return { value: work(), bytes: memory.stats.highest };
    } finally {
      this.#rehearsal = undefined;
    }
  }

  /** Does something when the graph is gone that is being captured. */
  afterGraph(end: () => void): void {
    this.#capturing?.kept.push(end);
  }

  /** A block from outside of the driver's pool, which gives up for it what it has only cached. */
  adoptOutside(bytes: number, owner: string, kind: MemoryKind, take: (size: number) => number | undefined): DevicePtr {
    return this.adopt(bytes, owner, kind, (size) => {
      const { inUse, capacity } = this.stats;
      if (inUse + size > capacity) return undefined;
      this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
      return take(size);
    });
  }

  /** Takes memory for a graph; gives what lets `work` allocate there, and gives it back. What was cached may go to it: nothing is under way. */
  openGraph(bytes: number): { readonly capture: <T>(work: () => T) => T; readonly close: () => void } {
    this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
    const begin = super.allocate(bytes, "memory of a graph");
    const isOpen = (): boolean => this.#capturing === block;
    const memory = new GraphMemory(`${this.#name} in a graph`, begin, begin + bytes, this.#stream, isOpen);
    const block: GraphBlock = { memory, kept: [], isClosed: false };
    this.#graphs.add(block);
    const capture = <T>(work: () => T): T => {
      this.#capturing = block;
      try {
        return work();
      } finally {
        this.#capturing = undefined;
      }
    };
    const close = (): void => {
      block.isClosed = true;
      this.#endBlock(block);
    };
    return { capture, close };
  }

  #endBlock(block: GraphBlock): void {
    if (!block.isClosed || block.memory.stats.inUse > 0) return;
    this.#graphs.delete(block);
    for (const end of block.kept) end();
    super.free(devicePtr(block.memory.begin));
  }

  protected override reserve(bytes: number): number | undefined {
    const { symbols, provider } = this.#cudart;
    const { inUse, capacity } = this.stats;
    if (inUse + bytes > capacity) return undefined;
    const place = this.#place;
    try {
      symbols.cudaMallocAsync(place, bytes, this.#stream().handle);
    } catch (error) {
      if (error instanceof NativeError && error.code === "cudaErrorMemoryAllocation") return undefined;
      throw error;
    }
    const start = provider.numberOf(place.value);
    this.#taken.add(start);
    return start;
  }

  protected override release(start: number): void {
    if (this.#isClosed) return;
    this.#taken.delete(start);
    const { symbols, provider } = this.#cudart;
    symbols.cudaFreeAsync(provider.offset(provider.nullAddress, start), this.#stream().handle);
  }

  protected override get largestFree(): number {
    return this.stats.capacity - this.stats.inUse;
  }
}
