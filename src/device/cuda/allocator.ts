/**
 * The memory of a card: the driver's own pool, which keeps freed blocks and reuses them in the order of streams. A block belongs
 * to the stream that allocates it until an event orders another stream after it, and it is freed in the order of the stream that
 * frees it. The allocator accounts the memory that tensors hold.
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

/** Allocates blocks of a card's memory. */
export class CudaAllocator extends GraphAllocator {
  readonly #cudart: Cudart;
  readonly #stream: () => CudaStream;
  /** Output argument: the driver writes a block's address here. */
  readonly #place: Out<"address">;
  readonly #pool: Handle<"cudaMemPool_t">;
  /** First addresses of the pool's blocks that were not freed. */
  readonly #taken = new Set<number>();
  #isClosed = false;

  /**
   * Sets the pool to keep freed memory.
   *
   * @param capacity largest number of bytes in use
   * @param stream returns the current stream
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
   * Frees all of the pool; later frees are only counted. No work may be under way. Blocks of {@link adoptOutside} are not the
   * pool's, and stay.
   */
  close(): void {
    for (const start of this.#taken) this.release(start);
    this.#isClosed = true;
    this.#stream().synchronize();
    this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
  }

  /** Counts a block from outside of the driver's pool; the pool first returns its cached memory to the driver. */
  adoptOutside(bytes: number, owner: string, kind: MemoryKind, take: (size: number) => number | undefined): DevicePtr {
    return this.adopt(bytes, owner, kind, (size) => {
      const { inUse, capacity } = this.stats;
      if (inUse + size > capacity) return undefined;
      this.#cudart.symbols.cudaMemPoolTrimTo(this.#pool, 0);
      return take(size);
    });
  }

  override openGraph(bytes: number): ReturnType<GraphAllocator["openGraph"]> {
    // Memory that the pool has only cached may go to the graph.
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
