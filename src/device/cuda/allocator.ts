/**
 * The memory of a card: the driver's own pool, which keeps what is freed and gives it out again in the order of streams. A block
 * belongs to the stream on which it is allocated until an event says otherwise, and it is freed in the order of the stream on
 * which that happens. What is accounted here is what tensors hold.
 *
 * @module
 */
import { NativeError } from "../../errors.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { Handle, Out } from "../../ffi/types.ts";
import type { MemoryKind } from "../allocator.ts";
import type { DevicePtr } from "../device.ts";
import { GraphAllocator } from "../graph_allocator.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

/** Hands out blocks of a card's memory. */
export class CudaAllocator extends GraphAllocator {
  readonly #cudart: Cudart;
  readonly #stream: () => CudaStream;
  /** Where the driver writes the address of a block. */
  readonly #place: Out<"address">;
  readonly #pool: Handle<"cudaMemPool_t">;
  /** Where blocks of the driver's pool begin that have not gone back to it. */
  readonly #taken = new Set<number>();
  #isClosed = false;

  /**
   * Makes the driver keep what is freed.
   *
   * @param capacity bytes that it may give out
   * @param stream the one under way
   */
  constructor(name: string, index: number, capacity: number, cudart: Cudart, stream: () => CudaStream) {
    super(name, 0, capacity, stream);
    this.#cudart = cudart;
    this.#place = cudart.provider.out("address");
    this.#stream = stream;
    const pool = cudart.provider.out("cudaMemPool_t");
    cudart.symbols.cudaDeviceGetDefaultMemPool(pool, index);
    this.#pool = pool.value;
    const all = BigUint64Array.of(2n ** 64n - 1n);
    cudart.symbols.cudaMemPoolSetAttribute(pool.value, CUDART_CONSTANTS.cudaMemPoolAttrReleaseThreshold, all);
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

  /** A block from outside of the driver's pool, which gives up for it what it has only cached. */
  adoptOutside(bytes: number, owner: string, kind: MemoryKind, take: (size: number) => number | undefined): DevicePtr {
    return this.adopt(bytes, owner, kind, (size) => {
      const { inUse, capacity } = this.stats;
      if (inUse + size > capacity) return undefined;
      this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
      return take(size);
    });
  }

  override openGraph(bytes: number): ReturnType<GraphAllocator["openGraph"]> {
    // What the driver has only cached may go to the graph.
    this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
    return super.openGraph(bytes);
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
