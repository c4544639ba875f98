/**
 * Files that gzip or zstd may have compressed, as the bytes that went in.
 *
 * @module
 */
import { openReadable } from "./files.ts";
import { gunzip, isGzip } from "./gzip.ts";
import { isZstd, unzstd } from "./zstd.ts";

/** The ending that a compressed file's name has behind the ending of its contents. */
export const PACKED_ENDING: RegExp = /\.(?:gz|zst|zstd)$/i;

/** The program that has compressed a file, by its first bytes; undefined for none. @throws {FileError} if it cannot be read */
export function packerOf(file: string): "gzip" | "zstd" | undefined {
  using reader = openReadable(file);
  const head = new Uint8Array(Math.min(4, reader.byteLength));
  reader.read(0, head);
  return isGzip(head) ? "gzip" : isZstd(head) ? "zstd" : undefined;
}

/**
 * Bytes of a file, unpacked where it is packed; each piece is valid until the next.
 *
 * @throws {FileError} if the file cannot be read, ends too soon or is damaged, after the bytes before that
 */
export async function* unpackedPieces(file: string): AsyncGenerator<Uint8Array> {
  const packer = packerOf(file);
  if (packer === "gzip") return yield* gunzip(file);
  if (packer === "zstd") return yield* unzstd(file);
  using reader = openReadable(file);
  yield* reader.pieces(0, reader.byteLength);
}
