/**
 * The memory of a card: the driver's own pool, which keeps what is freed and gives it out again in the order of streams. A block
 * belongs to the stream on which it is allocated until an event says otherwise, and it is freed in the order of the stream on
 * which that happens. What is accounted here is what tensors hold.
 *
 * @module
 */
import { CUDART_CONSTANTS } from "../../../ffi/bindings/cudart.ts";
import type { Out } from "../../../ffi/types.ts";
import { NativeError } from "../../errors.ts";
import { Allocator } from "../allocator.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

/** Hands out blocks of a card's memory. */
export class CudaAllocator extends Allocator {
  readonly #cudart: Cudart;
  readonly #stream: () => CudaStream;
  /** Where the driver writes the address of a block. */
  readonly #place: Out<"address">;

  /**
   * Makes the driver keep what is freed.
   *
   * @param capacity bytes that it may give out
   * @param stream the one under way
   */
  constructor(name: string, index: number, capacity: number, cudart: Cudart, stream: () => CudaStream) {
    super(name, 0, capacity);
    this.#cudart = cudart;
    this.#place = cudart.provider.out("address");
    this.#stream = stream;
    const pool = cudart.provider.out("cudaMemPool_t");
    cudart.symbols.cudaDeviceGetDefaultMemPool(pool, index);
    const all = BigUint64Array.of(2n ** 64n - 1n);
    cudart.symbols.cudaMemPoolSetAttribute(pool.value, CUDART_CONSTANTS.cudaMemPoolAttrReleaseThreshold, all);
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
    return provider.numberOf(place.value);
  }

  protected override release(start: number): void {
    const { symbols, provider } = this.#cudart;
    symbols.cudaFreeAsync(provider.offset(provider.nullAddress, start), this.#stream().handle);
  }

  protected override get largestFree(): number {
    return this.stats.capacity - this.stats.inUse;
  }
}
