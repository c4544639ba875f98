/**
 * Files that zstd has compressed, read piece by piece, frame after frame.
 *
 * Frames are divided into their blocks here, by the headers of these (RFC 8878): the runtimes' decompressors say nothing of a file
 * that was cut off. Deno's ends behind the first frame, and throws what goes wrong where nobody catches it unless all that a write
 * gives fits in its buffer.
 *
 * @module
 */
import { pipeline, Readable } from "node:stream";
import { createZstdDecompress } from "node:zlib";
import { FileError } from "../errors.ts";
import { codeOf } from "./errno.ts";
import { openReadable, type ReadableFile } from "./files.ts";

const FRAME = 0xfd2fb528;
/** Frames of other programs' data, which decompressors skip, differ in the lowest 4 bits. */
const SKIPPABLE = 0x184d2a50;
/** Bytes for what is unpacked at a time: more than a block's 128 KiB. */
const OUTPUT_BYTES = 2 ** 18;

/** True if bytes begin with zstd's magic number. */
export function isZstd(head: Uint8Array): boolean {
  if (head.length < 4) return false;
  const magic = new DataView(head.buffer, head.byteOffset).getUint32(0, true);
  return magic === FRAME || isSkippable(magic);
}

function isSkippable(magic: number): boolean {
  return (magic & ~15) >>> 0 === SKIPPABLE;
}

/**
 * The bytes that zstd has compressed into a file, all frames of it.
 *
 * @throws {FileError} if the file cannot be read, ends too soon or is damaged, after the bytes before that
 */
export async function* unzstd(file: string): AsyncGenerator<Uint8Array> {
  using reader = openReadable(file);
  for (let start = 0; start < reader.byteLength;) {
    const magic = numberAt(reader, start, start, 4);
    if (isSkippable(magic)) {
      start += 8 + numberAt(reader, start, start + 4, 4);
      if (start > reader.byteLength) throw cutOff(reader, start);
      continue;
    }
    if (magic !== FRAME) {
      const detail = `expected a frame of zstd at byte ${start}, got the number 0x${magic.toString(16)}`;
      throw new FileError(reader.path, "unpack", `${detail}: get the file anew`);
    }
    const place = { end: start };
    yield* unpackedFrame(reader, start, place);
    start = place.end;
  }
}

/** The bytes of one frame. @param place gets the place of its end */
async function* unpackedFrame(
  reader: ReadableFile,
  start: number,
  place: { end: number },
): AsyncGenerator<Uint8Array> {
  const parts = function* (): Generator<Uint8Array> {
    for (const end of endsOf(reader, start)) {
      const part = new Uint8Array(end - place.end);
      reader.read(place.end, part);
      place.end = end;
      yield part;
    }
  };
  const unpack = createZstdDecompress({ chunkSize: OUTPUT_BYTES });
  // An error of the source ends the reading below with the same error.
  pipeline(Readable.from(parts()), unpack, () => undefined);
  try {
    for await (const piece of unpack) if (piece instanceof Uint8Array) yield piece;
  } catch (error) {
    if (error instanceof FileError) throw error;
    const detail = error instanceof Error ? error.message : String(error);
    const said = `the frame at byte ${start} is damaged, by zstd's own checks (${detail}): get the file anew`;
    throw new FileError(reader.path, "unpack", said, codeOf(error), { cause: error });
  }
}

/** The places in the file at which the blocks of a frame end, and its checksum, where it has one. */
function* endsOf(reader: ReadableFile, start: number): Generator<number> {
  const within = (end: number): number => {
    if (end > reader.byteLength) throw cutOff(reader, start);
    return end;
  };
  const descriptor = numberAt(reader, start, start + 4, 1);
  const isSingle = (descriptor & 32) !== 0;
  const lengthField = descriptor >>> 6;
  const lengthBytes = lengthField === 0 ? (isSingle ? 1 : 0) : 1 << lengthField;
  const dictionaryField = descriptor & 3;
  const dictionaryBytes = dictionaryField === 3 ? 4 : dictionaryField;
  let offset = start + 5 + (isSingle ? 0 : 1) + dictionaryBytes + lengthBytes;
  for (let isLast = false; !isLast;) {
    const header = numberAt(reader, start, offset, 3);
    isLast = (header & 1) !== 0;
    const isRepeated = (header >>> 1 & 3) === 1; // one byte stands for all of the block
    offset += 3 + (isRepeated ? 1 : header >>> 3);
    yield within(offset);
  }
  if ((descriptor & 4) !== 0) yield within(offset + 4);
}

/** A number of a frame. @param start the frame's first byte, for messages */
function numberAt(reader: ReadableFile, start: number, offset: number, byteLength: number): number {
  if (offset + byteLength > reader.byteLength) throw cutOff(reader, start);
  const bytes = new Uint8Array(4);
  reader.read(offset, bytes.subarray(0, byteLength));
  return new DataView(bytes.buffer).getUint32(0, true);
}

function cutOff(reader: ReadableFile, start: number): FileError {
  const detail =
    `it ends at byte ${reader.byteLength}, in the middle of the frame of zstd that begins at byte ${start}: ` +
    "it was cut off, so get it anew";
  return new FileError(reader.path, "unpack", detail);
}
