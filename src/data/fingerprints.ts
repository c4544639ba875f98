/**
 * Fingerprints of texts that were read before: all of a text is hashed once, and kept with a stamp of its files, by which later
 * starts know it without reading it.
 *
 * Note [Stamps]: a stamp is the SHA-256 of each file's path, size, inode, times of modification and of change, and of blocks
 * spread over the text, 16 MiB in all. A file that is written gets another time of change, which no program sets at will; the
 * blocks are for file systems that tell times late. A text that was changed less than two seconds before it was hashed is not
 * kept: times may have that grain.
 *
 * @module
 */
import { sha256 } from "../runtime/checksum.ts";
import { fileTimes } from "../runtime/entries.ts";
import {
  absolutePath,
  makeDirectory,
  openReadable,
  pathKind,
  type ReadableFile,
  readTextSync,
  replaceFile,
} from "../runtime/files.ts";

const BLOCK_BYTES = 4096;
/** Blocks that are read of a text, but for one of each file. */
const BLOCKS = 4096;
/** Blocks that are read of a file at most. */
const BLOCKS_OF_FILE = 64;
const GRAIN_MS = 2000;

/** The state of files when they were looked at. */
export interface Stamp {
  /** Hexadecimal; differs where a file may have other contents. */
  readonly print: string;
  /** Time of the last change to one of them, in milliseconds since the epoch. */
  readonly changedMs: number;
}

/** Looks at files. `meaning` names everything that decides how they are used. @throws {FileError} if one has gone or cannot be read */
export function stampOf(files: readonly string[], meaning: string): Stamp {
  const each = blocksOfFile(files.length);
  let changedMs = 0;
  const pieces = function* (): Generator<string | Uint8Array> {
    yield `${meaning}\n`;
    for (const file of files) {
      const times = fileTimes(file);
      using reader = openReadable(file);
      changedMs = Math.max(changedMs, times.changedMs, times.modifiedMs);
      yield JSON.stringify([absolutePath(file), reader.byteLength, times.inode, times.modifiedMs, times.changedMs]);
      yield* blocksOf(reader, each);
    }
  };
  return { print: sha256(pieces()), changedMs };
}

/** Blocks of the contents of files, and their sizes: what is equal on hosts with equal copies. @throws {FileError} */
export function* contentBlocks(files: readonly string[]): Generator<string | Uint8Array> {
  const each = blocksOfFile(files.length);
  for (const file of files) {
    using reader = openReadable(file);
    yield `${reader.byteLength}\n`;
    yield* blocksOf(reader, each);
  }
}

/** Blocks that are read of each of some files. */
function blocksOfFile(numFiles: number): number {
  return Math.max(1, Math.min(BLOCKS_OF_FILE, Math.floor(BLOCKS / numFiles)));
}

/** Blocks spread over a file, each valid until the next. */
function* blocksOf(reader: ReadableFile, most: number): Generator<Uint8Array> {
  const { byteLength } = reader;
  const length = Math.min(BLOCK_BYTES, byteLength);
  const block = new Uint8Array(length);
  const count = Math.min(most, Math.ceil(byteLength / BLOCK_BYTES));
  for (let i = 0; i < count; i++) {
    reader.read(count === 1 ? 0 : Math.floor((byteLength - length) / (count - 1) * i), block);
    yield block;
  }
}

/** Fingerprints of texts, kept in a folder under the names of their files. */
export class KeptFingerprint {
  readonly #folder: string;
  readonly #path: string;
  readonly #stamp: Stamp;
  readonly #lookedMs: number = Date.now();

  /** @param files of the text, in order; `meaning` names everything that decides how they are used */
  constructor(folder: string, files: readonly string[], meaning: string) {
    this.#folder = folder;
    this.#stamp = stampOf(files, meaning);
    const names = files.map((file) => `${absolutePath(file)}\0`);
    this.#path = `${folder}/text-${sha256([meaning, "\0", ...names]).slice(0, 32)}.json`;
  }

  /** The fingerprint that was kept, if the files have not changed since. */
  read(): string | undefined {
    if (pathKind(this.#path) !== "file") return undefined;
    try {
      const kept: unknown = JSON.parse(readTextSync(this.#path));
      if (typeof kept !== "object" || kept === null || !("stamp" in kept) || !("fingerprint" in kept)) return undefined;
      const { stamp, fingerprint } = kept;
      const isSame = stamp === this.#stamp.print && typeof fingerprint === "string" &&
        /^[0-9a-f]{64}$/.test(fingerprint);
      return isSame ? fingerprint : undefined;
    } catch {
      return undefined; // a file that cannot be read is made anew
    }
  }

  /** Keeps a fingerprint for later starts, unless files were changed too short a time ago. */
  keep(fingerprint: string): void {
    if (this.#lookedMs - this.#stamp.changedMs < GRAIN_MS) return;
    makeDirectory(this.#folder);
    replaceFile(this.#path, JSON.stringify({ stamp: this.#stamp.print, fingerprint }));
  }
}
