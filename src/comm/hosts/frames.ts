/**
 * Frames between a rank and the store: a length (4 bytes, of the rest), a kind (1 byte) and a body; numbers are
 * little-endian. A reader has a limit, and refuses a longer frame by its length alone.
 *
 * Note [Kinds of frames]
 * 1. The store sends `challenge`, a random number.
 * 2. A rank answers `hello`: rank, world size, its own random number, the code of both numbers by the run's token, version.
 *   A process that takes the place of an ended rank sends `absent` instead, and then `abort`.
 * 3. The store proves by the code in `welcome` that it knows the token too, or gives the reason in `refused`.
 * 4. `roll` tells how many ranks are missing while ranks join, and names the first of them.
 * 5. `open` and `leave` begin and end a rank's part in a group, and `update` changes bytes of a rank's block in it. A rank
 *   receives the blocks that it names in `open` or `follow`; after `ask`, the first bytes of all others and then `answer`.
 * 6. `gone` names a rank whose stream ended without `bye`, with 1 if its host cannot be reached, else 0; `abort` carries the words of the
 *   abort area.
 * 7. `beat` is a sign of life: see Note [Beats] in `beats.ts`.
 *
 * @module
 */
import { at } from "../../at.ts";
import { UnsupportedError } from "../../errors.ts";

/** Kinds of frames, by their code. */
const FRAME_KINDS = [
  "challenge",
  "hello",
  "welcome",
  "refused",
  "roll",
  "open",
  "leave",
  "update",
  "gone",
  "abort",
  "bye",
  "follow",
  "ask",
  "answer",
  "absent",
  "beat",
] as const;
/** Name of a kind of frames. */
export type FrameKind = typeof FRAME_KINDS[number];

/** Version, which ends every `hello`. */
export const VERSION = "fullyshard store 4";
/** Bytes of a random number or a code, and of a group's id. */
export const NUMBER_BYTES = 32;
export const ID_BYTES = 8;
/** Longest frame of a stream that has not proved that it knows the token, and of a rank. */
export const STRANGER_BYTES = 256;
export const RANK_BYTES: number = 2 ** 22;

const HEAD_BYTES = 4;
/** Largest length, and largest number, of a frame. */
const MAX_LENGTH = 2 ** 32 - 1;

/** Bytes that are not a frame, or a frame that may not come now. */
export class FrameError extends Error {
  override readonly name = "FrameError";
}

/** A frame whose body is valid until more is received. */
export interface Frame {
  readonly kind: FrameKind;
  readonly body: Fields;
}

/** Bytes of a reader's memory at first. A reader that grew beyond {@link KEPT_BYTES} returns to this size when it is empty. */
const ROOM_BYTES = 4096;
const KEPT_BYTES = 2 ** 15;

/** Splits received bytes into frames. */
export class FrameReader {
  /** Longest frame. */
  limit: number;
  #bytes: Uint8Array<ArrayBuffer> = new Uint8Array(ROOM_BYTES);
  #begin = 0;
  #end = 0;

  constructor(limit: number) {
    this.limit = limit;
  }

  /** Room for the bytes that are received next; call {@link received} after. */
  get room(): Uint8Array {
    if (this.#begin > 0) {
      this.#bytes.copyWithin(0, this.#begin, this.#end);
      this.#end -= this.#begin;
      this.#begin = 0;
      // A store has a reader of each rank, and long frames come while ranks join.
      if (this.#end === 0 && this.#bytes.length > KEPT_BYTES) this.#bytes = new Uint8Array(ROOM_BYTES);
    }
    // Grows with the bytes that have come, not with the length that a frame claims.
    if (this.#end * 2 > this.#bytes.length && this.#bytes.length < HEAD_BYTES + this.limit) {
      const longer = new Uint8Array(Math.min(HEAD_BYTES + this.limit, this.#bytes.length * 4));
      longer.set(this.#bytes.subarray(0, this.#end));
      this.#bytes = longer;
    }
    return this.#bytes.subarray(this.#end);
  }

  /** Tells the reader that `count` bytes were put into {@link room}. */
  received(count: number): void {
    this.#end += count;
  }

  /** The next complete frame; undefined until it has come. @throws {FrameError} if it is too long, or of an unknown kind */
  next(): Frame | undefined {
    const available = this.#end - this.#begin;
    if (available < HEAD_BYTES) return undefined;
    const length = new DataView(this.#bytes.buffer).getUint32(this.#begin, true);
    if (length < 1 || length > this.limit) {
      throw new FrameError(`a frame of ${length} bytes, where 1 to ${this.limit} are taken`);
    }
    if (available < HEAD_BYTES + length) return undefined;
    const begin = this.#begin + HEAD_BYTES;
    const code = at(this.#bytes, begin, "kind of frame");
    const kind = FRAME_KINDS[code];
    if (kind === undefined) throw new FrameError(`a frame of the unknown kind ${code}`);
    this.#begin = begin + length;
    return { kind, body: new Fields(this.#bytes.subarray(begin + 1, this.#begin)) };
  }
}

/** The body of a frame, field by field. */
export class Fields {
  readonly #bytes: Uint8Array;
  #begin = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isEmpty(): boolean {
    return this.#begin === this.#bytes.length;
  }

  /** The next `count` bytes; without `count`, the rest. @throws {FrameError} if there are fewer */
  bytes(count: number = this.#bytes.length - this.#begin): Uint8Array {
    if (count > this.#bytes.length - this.#begin) {
      throw new FrameError(`a frame that ends within a field of ${count} bytes`);
    }
    this.#begin += count;
    return this.#bytes.subarray(this.#begin - count, this.#begin);
  }

  number(): number {
    const bytes = this.bytes(4);
    return new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  }

  /** The next list of numbers, which begins with its length. */
  numbers(): readonly number[] {
    const bytes = this.bytes(this.number() * 4);
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    return Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(i * 4, true));
  }

  /** A group's id, in hexadecimal digits. */
  id(): string {
    return this.bytes(ID_BYTES).toHex();
  }

  text(): string {
    return new TextDecoder().decode(this.bytes());
  }
}

/** A field: bytes, a number of 32 bits, or a text, which must be the last. */
export type Field = Uint8Array | number | string;

/** Frames that are to be sent. */
export class FrameWriter {
  #bytes: Uint8Array<ArrayBuffer> = new Uint8Array(4096);
  #begin = 0;
  #end = 0;

  /** Bytes to send; call {@link sent} after. */
  get pending(): Uint8Array {
    return this.#bytes.subarray(this.#begin, this.#end);
  }

  /** Number of bytes to send. */
  get length(): number {
    return this.#end - this.#begin;
  }

  /** Tells the writer that `count` bytes were sent. */
  sent(count: number): void {
    this.#begin += count;
    if (this.#begin === this.#end) this.#begin = this.#end = 0;
  }

  write(kind: FrameKind, ...fields: readonly Field[]): void {
    const parts = fields.map((field) => typeof field === "string" ? new TextEncoder().encode(field) : field);
    const length = parts.reduce<number>((sum, part) => sum + (typeof part === "number" ? 4 : part.length), 1);
    if (length > MAX_LENGTH) {
      throw new UnsupportedError(
        `Cannot send a frame '${kind}' of ${length} bytes: its length has 32 bits, at most ${MAX_LENGTH}`,
      );
    }
    for (const part of parts) {
      if (typeof part !== "number" || (Number.isInteger(part) && part >= 0 && part <= MAX_LENGTH)) continue;
      throw new UnsupportedError(
        `Cannot send ${part} in a frame '${kind}': its numbers are integers from 0 to ${MAX_LENGTH}`,
      );
    }
    this.#reserve(HEAD_BYTES + length);
    const view = new DataView(this.#bytes.buffer);
    view.setUint32(this.#end, length, true);
    this.#bytes[this.#end + HEAD_BYTES] = FRAME_KINDS.indexOf(kind);
    this.#end += HEAD_BYTES + 1;
    for (const part of parts) {
      if (typeof part === "number") view.setUint32(this.#end, part, true);
      else this.#bytes.set(part, this.#end);
      this.#end += typeof part === "number" ? 4 : part.length;
    }
  }

  #reserve(byteLength: number): void {
    if (this.#end + byteLength <= this.#bytes.length) return;
    const used = this.#end - this.#begin;
    const longer = new Uint8Array(Math.max(this.#bytes.length, 2 * (used + byteLength)));
    longer.set(this.pending);
    [this.#bytes, this.#begin, this.#end] = [longer, 0, used];
  }
}

/** A list of numbers with its length, as {@link Fields.numbers} reads it. */
export function listField(numbers: readonly number[]): Uint8Array {
  return new Uint8Array(Uint32Array.of(numbers.length, ...numbers).buffer);
}

/** Bytes whose code by the token proves that the speaker knows it; they hold two random numbers. */
export function codePieces(speaker: "rank" | "store", first: Uint8Array, second: Uint8Array): readonly Uint8Array[] {
  return [new TextEncoder().encode(`${VERSION} ${speaker}`), first, second];
}
