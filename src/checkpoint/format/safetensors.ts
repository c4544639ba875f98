/**
 * Safetensors files: open one and read any range of any tensor, or write one piece by piece. The header's meaning and
 * every check of it are in `safetensors_header.ts`; tensors on a device and names of a model are left to others.
 *
 * Invariant: a file being written appears under its name when it is complete and synced, or not at all.
 *
 * @module
 */
import { ArgumentError, CheckpointError } from "../../errors.ts";
import { FOREIGN_BYTES, foreignContent } from "../../runtime/file_kind.ts";
import { openReadable, type ReadableFile, replaceFile } from "../../runtime/files.ts";
import { PieceChecksums, type WrittenFile } from "./pieces.ts";
import {
  headerLength,
  parseHeader,
  renderHeader,
  type SafetensorsEntry,
  type SafetensorsHeader,
  type SafetensorsSpec,
} from "./safetensors_header.ts";

/** An open safetensors file. Its header was read and checked; tensors are read when asked for. */
export class SafetensorsFile implements Disposable {
  readonly path: string;
  /** All tensors, in the order of their bytes. */
  readonly entries: readonly SafetensorsEntry[];
  /** The file's own key-value pairs, e.g. `format` → `pt`. */
  readonly metadata: ReadonlyMap<string, string>;
  readonly #file: ReadableFile;
  readonly #byName: ReadonlyMap<string, SafetensorsEntry>;

  /** Use {@link openSafetensors}. */
  constructor(file: ReadableFile, header: SafetensorsHeader) {
    this.path = file.path;
    this.entries = header.entries;
    this.metadata = header.metadata;
    this.#file = file;
    this.#byName = new Map(header.entries.map((entry) => [entry.name, entry]));
  }

  /** Names of all tensors, in the order of their bytes. */
  get names(): readonly string[] {
    return this.entries.map(({ name }) => name);
  }

  /** True if there is a tensor of that name. */
  has(name: string): boolean {
    return this.#byName.has(name);
  }

  /** The place, dtype and shape of a tensor. @throws {CheckpointError} if there is none of that name */
  get(name: string): SafetensorsEntry {
    const entry = this.#byName.get(name);
    if (entry === undefined) throw new CheckpointError(this.path, "There is no tensor of that name", name);
    return entry;
  }

  /**
   * Reads a range of a tensor's bytes.
   *
   * @param byteStart first byte, counted from the tensor's first
   * @param byteEnd one after the last byte
   * @param destination as long as the range
   * @throws {CheckpointError} if there is no such tensor
   * @throws {ArgumentError} if the range is not within it, or the destination has another length
   * @throws {FileError} if the file was cut off since it was opened, or closed
   */
  async readInto(name: string, byteStart: number, byteEnd: number, destination: Uint8Array): Promise<void> {
    this.readIntoSync(name, byteStart, byteEnd, destination);
  }

  /** Like {@link readInto}, at once. */
  readIntoSync(name: string, byteStart: number, byteEnd: number, destination: Uint8Array): void {
    const offset = this.#placeOf(name, byteStart, byteEnd);
    if (destination.length !== byteEnd - byteStart) {
      throw new ArgumentError(
        `A destination of ${byteEnd - byteStart} bytes is needed for tensor '${name}', got ${destination.length}`,
      );
    }
    this.#file.read(offset, destination);
  }

  /** Like {@link readInto}, but gives the bytes piece by piece, each valid until the next. */
  pieces(name: string, byteStart: number, byteEnd: number): Iterable<Uint8Array> {
    return this.#file.pieces(this.#placeOf(name, byteStart, byteEnd), byteEnd - byteStart);
  }

  /** Closes the file; a second call does nothing. */
  close(): void {
    this.#file.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** The place in the file at which a range of a tensor begins. */
  #placeOf(name: string, byteStart: number, byteEnd: number): number {
    const { byteOffset, byteLength } = this.get(name);
    const whole = Number.isSafeInteger(byteStart) && Number.isSafeInteger(byteEnd);
    if (!whole || byteStart < 0 || byteEnd < byteStart || byteEnd > byteLength) {
      throw new ArgumentError(`Bytes ${byteStart} to ${byteEnd} are not within the ${byteLength} of tensor '${name}'`);
    }
    return byteOffset + byteStart;
  }
}

/**
 * Opens a file, reading and checking its header only.
 *
 * @param open opens the file, where its bytes are to be checked
 * @throws {FileError} if it cannot be read
 * @throws {CheckpointError} if it is damaged
 */
export async function openSafetensors(
  path: string,
  open: (path: string) => ReadableFile = openReadable,
): Promise<SafetensorsFile> {
  using opened = new DisposableStack();
  const file = opened.use(open(path));
  const start = new Uint8Array(Math.min(FOREIGN_BYTES, file.byteLength));
  file.read(0, start);
  let header: SafetensorsHeader;
  try {
    const bytes = new Uint8Array(8 + headerLength(start.subarray(0, 8), file.byteLength, path));
    file.read(0, bytes);
    header = parseHeader(bytes, file.byteLength, path);
  } catch (error) {
    // Asked for damaged files only: a sound header may begin with any byte.
    const foreign = error instanceof CheckpointError && start.length > 0 ? foreignContent(start) : undefined;
    if (foreign === undefined) throw error;
    throw new CheckpointError(path, `Expected a safetensors file, but it is ${foreign}`, undefined, { cause: error });
  }
  opened.move();
  return new SafetensorsFile(file, header);
}

/**
 * Writes a complete file: aside, synced, then renamed, so that a failure leaves what was there before.
 *
 * @param specs its tensors; stored by falling element size, else in this order
 * @param metadata the file's own key-value pairs, e.g. `{ format: "pt" }`
 * @param produce the bytes of a tensor, in pieces of any length; asked once for each tensor, in the order stored. A
 *   piece has been written when the next is asked for, so its memory may be used again
 * @throws {ArgumentError} if a spec cannot be stored, or a tensor's pieces are not as long as its shape says
 * @throws {FileError} if it cannot be written
 */
export async function writeSafetensors(
  path: string,
  specs: readonly SafetensorsSpec[],
  metadata: Readonly<Record<string, string>>,
  produce: (entry: SafetensorsEntry) => Iterable<Uint8Array>,
): Promise<WrittenFile> {
  const { entries, bytes, fileLength } = renderHeader(specs, metadata);
  const checksums = new PieceChecksums();
  function* pieces(): Iterable<Uint8Array> {
    checksums.add(bytes);
    yield bytes;
    for (const entry of entries) {
      let written = 0;
      for (const piece of produce(entry)) {
        written += piece.length;
        if (written > entry.byteLength) break;
        checksums.add(piece);
        yield piece;
      }
      if (written !== entry.byteLength) {
        throw new ArgumentError(`Tensor '${entry.name}' takes ${entry.byteLength} bytes, got ${written}`);
      }
    }
  }
  replaceFile(path, pieces());
  return { byteLength: fileLength, crc32: checksums.finish() };
}
