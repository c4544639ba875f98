/**
 * Checksums of a file by pieces, so that a reader of one range checks that range and no more.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { crc32, crc32Text } from "../../runtime/checksum.ts";
import { openReadable, type ReadableFile } from "../../runtime/files.ts";

/** Bytes of a piece; the last may be shorter. */
export const PIECE_BYTES: number = 1 << 20;

/** Hexadecimal digits of one checksum. */
const DIGITS = 8;

/** A file that was written. */
export interface WrittenFile {
  readonly byteLength: number;
  /** CRC-32 of each {@link PIECE_BYTES}, eight hexadecimal digits each, in order. */
  readonly crc32: string;
}

/** The record of a file that has these bytes. */
export function writtenFile(bytes: Uint8Array): WrittenFile {
  const checksums = new PieceChecksums();
  checksums.add(bytes);
  return { byteLength: bytes.byteLength, crc32: checksums.finish() };
}

/** True if the record has one checksum for each piece of a file of its length. */
export function hasAllChecksums({ byteLength, crc32 }: WrittenFile): boolean {
  return crc32.length === Math.ceil(byteLength / PIECE_BYTES) * DIGITS;
}

/** Checksums of consecutive bytes. */
export class PieceChecksums {
  #texts: string[] = [];
  #current = 0;
  #length = 0;

  /** Takes the next bytes, of any number. */
  add(bytes: Uint8Array): void {
    for (let done = 0; done < bytes.length;) {
      const taken = bytes.subarray(done, done + PIECE_BYTES - this.#length);
      this.#current = crc32(taken, this.#current);
      this.#length += taken.length;
      done += taken.length;
      if (this.#length === PIECE_BYTES) this.#close();
    }
  }

  /** Ends the last piece, and gives all checksums as {@link WrittenFile} has them. */
  finish(): string {
    if (this.#length > 0) this.#close();
    return this.#texts.join("");
  }

  #close(): void {
    this.#texts.push(crc32Text(this.#current));
    this.#current = 0;
    this.#length = 0;
  }
}

/** A file open for reading. Every byte that it gives was checked. A `read` that fails may have written damaged bytes. */
export interface VerifiedFile extends ReadableFile {
  /** Bytes read from the file so far: full pieces. */
  readonly bytesRead: number;
}

/**
 * Opens a file whose length and checksums are known.
 *
 * @throws {FileError} if it cannot be opened
 * @throws {CheckpointError} if it has another length, and from `read`, naming the bytes that are not as they were written
 */
export function openVerified(path: string, written: WrittenFile): VerifiedFile {
  using opened = new DisposableStack();
  const file = opened.use(openReadable(path));
  const { byteLength } = written;
  if (file.byteLength !== byteLength) {
    throw new CheckpointError(path, `Expected ${byteLength} bytes, got ${file.byteLength}: it is cut off or changed`);
  }
  let bytesRead = 0;
  const readPiece = (start: number, into: Uint8Array): void => {
    file.read(start, into);
    bytesRead += into.length;
    const expected = written.crc32.slice(start / PIECE_BYTES * DIGITS, (start / PIECE_BYTES + 1) * DIGITS);
    const found = crc32Text(crc32(into));
    if (found === expected) return;
    const range = `Bytes ${start} to ${start + into.length}`;
    throw new CheckpointError(path, `${range} should have checksum ${expected}, got ${found}: it is damaged`);
  };
  // Neighbouring reads mostly begin where the last one ended, in the same piece.
  let held = -1;
  let piece = new Uint8Array(0);
  const load = (index: number): void => {
    if (index === held) return;
    const start = index * PIECE_BYTES;
    piece = new Uint8Array(piece.buffer.byteLength >= PIECE_BYTES ? piece.buffer : new ArrayBuffer(PIECE_BYTES))
      .subarray(0, Math.min(PIECE_BYTES, byteLength - start));
    held = -1;
    readPiece(start, piece);
    held = index;
  };
  const requireWithin = (end: number): void => {
    if (end <= byteLength) return;
    throw new CheckpointError(path, `It ends at byte ${byteLength}, but bytes up to ${end} are wanted`);
  };
  function* pieces(offset: number, count: number): Generator<Uint8Array> {
    const end = offset + count;
    requireWithin(end);
    for (let at = offset; at < end;) {
      load(Math.floor(at / PIECE_BYTES));
      const part = piece.subarray(at % PIECE_BYTES, at % PIECE_BYTES + end - at);
      yield part;
      at += part.length;
    }
  }
  const close = (): void => file.close();
  opened.move();
  return {
    path,
    byteLength,
    get bytesRead() {
      return bytesRead;
    },
    read(offset, into): void {
      requireWithin(offset + into.length);
      for (let done = 0; done < into.length;) {
        const at = offset + done;
        const rest = into.subarray(done, done + PIECE_BYTES - at % PIECE_BYTES);
        // A piece that is wanted in full is read where it is wanted.
        if (at % PIECE_BYTES === 0 && rest.length === Math.min(PIECE_BYTES, byteLength - at)) readPiece(at, rest);
        else {
          load(Math.floor(at / PIECE_BYTES));
          rest.set(piece.subarray(at % PIECE_BYTES, at % PIECE_BYTES + rest.length));
        }
        done += rest.length;
      }
    },
    pieces,
    close,
    [Symbol.dispose]: close,
  };
}
