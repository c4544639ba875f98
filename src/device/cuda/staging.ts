/**
 * Copies between the card and host memory that may move or be freed, through pinned pieces, which the card reads and writes
 * itself. A copy to the card returns when the host's bytes were read; a copy from the card when they have arrived.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import type { DevicePtr } from "../device.ts";
import type { DeviceEvent } from "../stream.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

const [PIECE_BYTES, PIECES] = [2 ** 20, 4];
/** Bytes after the pieces, for late reads. */
const LATE_BYTES = 4096;

interface PinnedPiece {
  readonly address: NativeAddress;
  readonly bytes: Uint8Array;
  /** Its stream, and the event after the copy out of it. */
  last?: { readonly stream: CudaStream; readonly event: DeviceEvent };
}

/** The pieces of one device. */
export class Staging {
  readonly #cudart: Cudart;
  readonly #block: NativeAddress;
  readonly #pieces: readonly PinnedPiece[];
  #next = 0;

  constructor(cudart: Cudart) {
    const { provider, symbols } = cudart;
    this.#cudart = cudart;
    const block = provider.out("address");
    symbols.cudaHostAlloc(block, PIECE_BYTES * PIECES + LATE_BYTES, 0);
    this.#block = block.value;
    this.#pieces = Array.from({ length: PIECES }, (_, i) => {
      const address = provider.offset(block.value, i * PIECE_BYTES);
      return { address, bytes: new Uint8Array(provider.viewOf(address, PIECE_BYTES)) };
    });
  }

  /** Copies host bytes to a piece and enqueues the copy to the card. */
  copyIn(dst: DevicePtr, src: Uint8Array, stream: CudaStream): void {
    const { symbols, provider } = this.#cudart;
    for (let done = 0; done < src.byteLength; done += PIECE_BYTES) {
      const part = src.subarray(done, done + PIECE_BYTES);
      const piece = this.#take();
      piece.bytes.set(part);
      const to = provider.offset(provider.nullAddress, dst + done);
      symbols.cudaMemcpyAsync(
        to,
        piece.address,
        part.byteLength,
        CUDART_CONSTANTS.cudaMemcpyHostToDevice,
        stream.handle,
      );
      piece.last = { stream, event: stream.record() };
    }
  }

  /** Waits for all work of a stream, and for a copy after it. */
  copyOut(dst: Uint8Array, src: DevicePtr, stream: CudaStream): void {
    const { symbols, provider } = this.#cudart;
    for (let done = 0; done < dst.byteLength; done += PIECE_BYTES) {
      const count = Math.min(PIECE_BYTES, dst.byteLength - done);
      const piece = this.#take();
      const from = provider.offset(provider.nullAddress, src + done);
      symbols.cudaMemcpyAsync(piece.address, from, count, CUDART_CONSTANTS.cudaMemcpyDeviceToHost, stream.handle);
      stream.synchronize();
      dst.set(piece.bytes.subarray(0, count), done);
    }
  }

  /**
   * Enqueues the copy of a few bytes; returns a function that waits for them and returns them. The next such copy overwrites the
   * last.
   */
  readLater(src: DevicePtr, byteLength: number, stream: CudaStream): () => DataView {
    const { symbols, provider } = this.#cudart;
    const to = provider.offset(this.#block, PIECE_BYTES * PIECES);
    const from = provider.offset(provider.nullAddress, src);
    symbols.cudaMemcpyAsync(to, from, byteLength, CUDART_CONSTANTS.cudaMemcpyDeviceToHost, stream.handle);
    const wait = stream.mark();
    return () => {
      wait();
      return new DataView(provider.viewOf(to, byteLength));
    };
  }

  /** Frees the pieces; no copy may be under way. */
  dispose(): void {
    this.#cudart.symbols.cudaFreeHost(this.#block);
  }

  /** A piece that no copy reads any more. */
  #take(): PinnedPiece {
    this.#next = (this.#next + 1) % PIECES;
    const piece = at(this.#pieces, this.#next, "piece");
    if (piece.last !== undefined && !piece.last.event.done) piece.last.stream.synchronize();
    delete piece.last;
    return piece;
  }
}
