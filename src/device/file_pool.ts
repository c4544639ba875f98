/**
 * A pool in a file without a name: it is removed from its directory once it is open, and freed with its last descriptor.
 *
 * @module
 */
import { openReadable, openWritable, type ReadableFile, removePath, type WritableFile } from "../runtime/files.ts";
import type { Allocator } from "./allocator.ts";
import type { DevicePtr } from "./device.ts";
import { poolAllocator, type StatePool } from "./state_pool.ts";

/** The pool; addresses are offsets in the file. */
export class FilePool implements StatePool {
  readonly name: string;
  readonly allocator: Allocator;
  readonly #writer: WritableFile;
  readonly #reader: ReadableFile;

  /** Use `openFilePool`. */
  constructor(directory: string) {
    this.name = `${directory}/.fullyshard-states-${crypto.randomUUID()}`;
    this.allocator = poolAllocator(this.name);
    this.#writer = openWritable(this.name, "create");
    try {
      this.#reader = openReadable(this.name);
    } catch (error) {
      this.#writer.close();
      throw error;
    } finally {
      removePath(this.name);
    }
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.#writer.write(src, dst);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.#reader.read(src, dst);
  }

  [Symbol.dispose](): void {
    this.#writer.close();
    this.#reader.close();
  }
}
