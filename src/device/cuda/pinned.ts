/**
 * Copies by the card itself between its memory and the offload pool in host memory. The host enqueues them, and waits for them
 * before the CPU next touches the pool.
 *
 * @module
 */
import { InternalError, NativeError, UnsupportedError } from "../../errors.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import type { NativeMemory } from "../native/memory.ts";
import type { MemoryPlace } from "../offload.ts";
import type { DeviceEvent } from "../stream.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

/** Bytes that are pinned at once: pinning occupies the host's pages, also untouched ones. */
const CHUNK_BYTES = 2 ** 24;

const { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaHostRegisterPortable } = CUDART_CONSTANTS;

/** The copies of one card to and from one memory. */
export class PinnedCopies {
  readonly #cudart: Cudart;
  readonly #memory: NativeMemory;
  /** Pinned chunks, by their number from the beginning of memory. */
  readonly #chunks = new Map<number, NativeAddress>();
  /** The last copy of each stream, until the host has waited for it. */
  readonly #pending = new Map<CudaStream, DeviceEvent>();

  constructor(cudart: Cudart, memory: NativeMemory) {
    this.#cudart = cudart;
    this.#memory = memory;
    memory.waitBeforeUse(() => this.#finish());
  }

  /**
   * Enqueues the copy after all copies that are under way.
   *
   * @param direction direction of the copy
   * @throws {UnsupportedError} if the host's memory cannot be pinned
   */
  enqueue(
    direction: "to card" | "from card",
    to: MemoryPlace,
    from: MemoryPlace,
    byteLength: number,
    stream: CudaStream,
  ): void {
    for (const [other, event] of this.#pending) if (other !== stream) stream.wait(event);
    const { symbols, provider } = this.#cudart;
    const kind = direction === "to card" ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    const host = direction === "to card" ? from.ptr : to.ptr;
    if (!this.#memory.holds(host, byteLength)) {
      throw new InternalError(`${byteLength} bytes at ${host} are not the pool's`);
    }
    for (let done = 0; done < byteLength;) {
      const offset = host + done - this.#memory.begin;
      const chunk = Math.floor(offset / CHUNK_BYTES);
      this.#pin(chunk);
      const count = Math.min(byteLength - done, (chunk + 1) * CHUNK_BYTES - offset);
      const [target, source] = [to.ptr, from.ptr].map((ptr) => provider.offset(provider.nullAddress, ptr + done));
      if (target !== undefined && source !== undefined) {
        symbols.cudaMemcpyAsync(target, source, count, kind, stream.handle);
      }
      done += count;
    }
    this.#pending.set(stream, stream.record());
  }

  /** Unpins the memory; no copy may be under way. */
  dispose(): void {
    for (const address of this.#chunks.values()) this.#cudart.symbols.cudaHostUnregister(address);
    this.#chunks.clear();
  }

  #pin(chunk: number): void {
    if (this.#chunks.has(chunk)) return;
    const begin = this.#memory.begin + chunk * CHUNK_BYTES;
    const address = this.#memory.address(begin);
    const byteLength = Math.min(CHUNK_BYTES, this.#memory.end - begin);
    try {
      this.#cudart.symbols.cudaHostRegister(address, byteLength, cudaHostRegisterPortable);
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      const pinned = this.#chunks.size * CHUNK_BYTES / 2 ** 20;
      throw new UnsupportedError(
        `Cannot pin ${byteLength} more bytes of the host for what is offloaded, ${pinned} MiB are: ${error.message}. Let the host ` +
          "pin more ('ulimit -l'), or offload with 'cpuOffloadPolicy({ pinMemory: false })'",
        { cause: error },
      );
    }
    this.#chunks.set(chunk, address);
  }

  #finish(): void {
    if (this.#pending.size === 0) return;
    for (const [stream, event] of this.#pending) if (!event.done) stream.waitOnHost(event);
    this.#pending.clear();
  }
}
