/**
 * The copy that an asynchronous save writes while training goes on: memory that a Worker reads too.
 *
 * Note [Where the copy lies]: a device's memory cannot be given to a Worker, so the copy lies in shared buffers of its own.
 * It takes its room from the device's allocator all the same: so it counts in every peak, a dry run predicts it, and a
 * rank's limit of memory holds for it. The room itself is never touched, and what is not touched costs nothing.
 *
 * @module
 */
import { placeOf, readHeld } from "../state_dict/held_values.ts";
import { at } from "../../at.ts";
import { Buffer } from "../../device/buffer.ts";
import { type Device, devicePtr, PAST_CACHES_BYTES } from "../../device/device.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError } from "../../errors.ts";
import type { Optimizer } from "../../optim/optimizer.ts";
import { numelOf } from "../../shape.ts";
import { type HeldTensor, modelTensors, type NamedParts, optimizerTensors } from "../state_dict/state_dict.ts";
import type { FileGroup, PlacedBox } from "./shard_files.ts";

/** Bytes of one buffer: no runtime has a view of more than 4 GiB. */
const CHUNK_BYTES = 2 ** 30;

/** Bytes that are copied or written at once: they stay in a processor's cache between checksum and write. */
const PIECE_BYTES = 2 ** 20;

/** Boxes in the copy. */
export interface StagedBoxes {
  /** {@link CHUNK_BYTES} each, the last as many as are left. */
  readonly memory: readonly SharedArrayBuffer[];
  /** The source of a box: the byte at which it begins. */
  readonly sections: readonly Pick<FileGroup<number>, "boxes">[];
}

/** Bytes of a copy from `start` on, piece by piece. */
export function* stagedPieces(
  memory: readonly SharedArrayBuffer[],
  start: number,
  byteLength: number,
): Generator<Uint8Array> {
  for (let done = 0; done < byteLength;) {
    const [chunk, offset] = [Math.floor((start + done) / CHUNK_BYTES), (start + done) % CHUNK_BYTES];
    const length = Math.min(byteLength - done, CHUNK_BYTES - offset, PIECE_BYTES);
    yield new Uint8Array(at(memory, chunk, "buffer of the copy"), offset, length);
    done += length;
  }
}

/** Bytes that a box has in a file. */
export function boxBytes({ box }: Pick<PlacedBox<unknown>, "box">): number {
  return numelOf(box.sizes) * float32.byteLength;
}

/**
 * Memory for the copy of `asyncSave`, used again by every save. It is taken at the first one, or by {@link reserve}, and given
 * back when it is disposed.
 *
 * @example
 * ```ts
 * import { AdamW, launch } from "fullyshard";
 * import { CheckpointStager } from "fullyshard/checkpoint";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * await using run = await launch();
 * const layer = new Linear(run.device, 64, 64, { bias: false });
 * initializeParameters(layer, 0);
 * const optimizer = new AdamW(layer.parameters());
 * using stager = new CheckpointStager(run.device);
 * stager.reserve(layer, optimizer);
 * if (stager.byteLength !== 3 * 4 * 64 * 64) throw new Error("the weights and two states of each");
 * ```
 */
export class CheckpointStager implements Disposable {
  readonly #device: Device;
  #room: Buffer | undefined;
  #memory: readonly SharedArrayBuffer[] = [];
  #user: string | undefined;

  /** Takes no memory yet. */
  constructor(device: Device) {
    this.#device = device;
  }

  /** Bytes of its memory. */
  get byteLength(): number {
    return this.#room?.byteLength ?? 0;
  }

  /**
   * Takes memory for all that this rank holds of a model and its optimizer, though of copies on several ranks only one is
   * written. In a dry run, whose peak then counts it, as before the first step of a real one.
   *
   * @throws {OutOfMemoryError} if the rank has not so much
   */
  reserve(model: NamedParts, optimizer?: Optimizer): void {
    const tensors = [...modelTensors(model), ...optimizer === undefined ? [] : optimizerTensors(model, optimizer)];
    const byteLength = tensors.reduce((sum, { shard }) => sum + shard.numel * float32.byteLength, 0);
    if (byteLength <= this.byteLength) return;
    this.#giveBack();
    this.#room = Buffer.allocate(this.#device, byteLength, "copy of an asynchronous save", "snapshot");
  }

  /**
   * Copies what a rank writes.
   *
   * @internal
   */
  stage(sections: readonly FileGroup<HeldTensor>[], rank: number): StagedBoxes {
    if (this.#memory.length === 0) this.#memory = chunksOf(this.byteLength);
    const isLarge = this.byteLength >= PAST_CACHES_BYTES;
    let next = 0;
    const place = ({ source, local, ...box }: PlacedBox<HeldTensor>): PlacedBox<number> => {
      const start = next;
      const from = placeOf(source, local);
      const { device, dtype } = source;
      const copies = (isLarge ? device.traits.nonTemporal : undefined) ?? device;
      for (const piece of stagedPieces(this.#memory, start, boxBytes(box))) {
        if (dtype === float32) copies.copyOut(piece, devicePtr(from + next - start));
        else {
          const values = new Float32Array(piece.byteLength / float32.byteLength);
          readHeld(source, local + (next - start) / float32.byteLength, values);
          piece.set(new Uint8Array(values.buffer));
        }
        next += piece.byteLength;
      }
      return { ...box, local, source: start };
    };
    const own = sections.map(({ boxes }) => ({ boxes: boxes.filter((box) => box.rank === rank).map(place) }));
    return { memory: this.#memory, sections: own };
  }

  /**
   * Lends it to a save.
   *
   * @throws {ArgumentError} if another one has it
   * @internal
   */
  lend(user: string): void {
    if (this.#user !== undefined) {
      throw new ArgumentError(
        `Cannot ${user}: the memory is in use to ${this.#user}; await what asyncSave() gave first`,
      );
    }
    this.#user = user;
  }

  /**
   * Takes it back.
   *
   * @param isRead true if a Worker may still read it: then the next save gets other memory
   * @internal
   */
  takeBack(isRead: boolean): void {
    this.#user = undefined;
    if (isRead) this.#memory = [];
  }

  /** Gives the memory back; a save that still writes keeps the copy until it has ended. */
  [Symbol.dispose](): void {
    this.#giveBack();
  }

  #giveBack(): void {
    this.#room?.release();
    this.#room = undefined;
    this.#memory = [];
  }
}

function chunksOf(byteLength: number): readonly SharedArrayBuffer[] {
  return Array.from({ length: Math.ceil(byteLength / CHUNK_BYTES) }, (_, i) => {
    return new SharedArrayBuffer(Math.min(CHUNK_BYTES, byteLength - i * CHUNK_BYTES));
  });
}
