/**
 * Files that gzip has compressed, read piece by piece: never more of one is in memory than a piece.
 *
 * @module
 */
import * as fs from "node:fs";
import { pipeline } from "node:stream";
import { createGunzip } from "node:zlib";
import { FileError } from "../errors.ts";
import { countOf } from "../words.ts";
import { codeOf } from "./errno.ts";

/** The first bytes of what gzip has written. */
const MAGIC = [0x1f, 0x8b];

/** True if bytes begin with gzip's magic number. */
export function isGzip(head: Uint8Array): boolean {
  return MAGIC.every((byte, i) => head[i] === byte);
}

/**
 * The bytes that gzip has compressed into a file, all members of it.
 *
 * @throws {FileError} if the file cannot be read, ends too soon or is damaged, after the bytes before that
 */
export async function* gunzip(file: string): AsyncGenerator<Uint8Array> {
  const unzip = createGunzip();
  // An error of the source ends the reading below with the same error.
  pipeline(fs.createReadStream(file), unzip, () => undefined);
  let unpacked = 0;
  try {
    for await (const piece of unzip) {
      if (!(piece instanceof Uint8Array)) continue;
      unpacked += piece.length;
      yield piece;
    }
  } catch (error) {
    const detail = `${detailOf(error)} (behind ${countOf(unpacked, "unpacked byte")})`;
    throw new FileError(file, "unpack", detail, codeOf(error), { cause: error });
  }
}

function detailOf(error: unknown): string {
  const code = codeOf(error);
  if (code === "Z_BUF_ERROR") return "it ends in the middle of what gzip wrote: it was cut off, so get it anew";
  const message = error instanceof Error ? error.message : String(error);
  return code === "Z_DATA_ERROR" ? `it is damaged, by gzip's own checks (${message}): get it anew` : message;
}
