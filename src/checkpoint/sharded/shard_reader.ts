/**
 * Reading the tensors of a sharded checkpoint: the ranges that a rank holds of them, checked piece by piece.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import { CheckpointError } from "../../errors.ts";
import { numelOf } from "../../shape.ts";
import { openVerified, type VerifiedFile } from "../format/pieces.ts";
import { openSafetensors, type SafetensorsFile } from "../format/safetensors.ts";
import type { HeldTensor } from "../state_dict/state_dict.ts";
import { readElements, readFloats } from "../state_dict/transfer.ts";
import type { Manifest, SavedShare, SavedTensor } from "./manifest.ts";

/** A tensor and what a checkpoint has of it. */
export interface SavedPart {
  readonly held: HeldTensor;
  readonly saved: SavedTensor;
}

/** Pairs tensors with what a checkpoint has of them; those that it lacks are left out. */
export function savedParts(tensors: Iterable<HeldTensor>, all: ReadonlyMap<string, SavedTensor>): SavedPart[] {
  return [...tensors].flatMap((held) => {
    const saved = all.get(held.name);
    return saved === undefined ? [] : [{ held, saved }];
  });
}

/** Reads elements from the files of a checkpoint, which are opened when first needed. */
export class ShardReader implements Disposable {
  /** Bytes of tensors that were asked for. */
  bytesRead = 0;
  readonly #path: string;
  readonly #written: Manifest["files"];
  readonly #files = new Map<string, { readonly file: SafetensorsFile; readonly bytes: VerifiedFile }>();

  constructor(path: string, { files }: Pick<Manifest, "files">) {
    this.#path = path;
    this.#written = files;
  }

  /** Bytes read from files: headers, and pieces whose checksums were compared. */
  get fileBytesRead(): number {
    return [...this.#files.values()].reduce((sum, { bytes }) => sum + bytes.bytesRead, 0);
  }

  /** Reads what this rank holds of a tensor from the shares that have it. */
  async read({ held, saved }: SavedPart): Promise<void> {
    const stored = saved.stored === undefined ? held : { ...held, name: saved.stored };
    for (const share of saved.shares) {
      this.bytesRead += await readElements(stored, share.box, () => this.#open(share, stored.name));
    }
  }

  /** Reads elements of a share, from `start` on. */
  async readValues(share: SavedShare, name: string, start: number, values: Float32Array<ArrayBuffer>): Promise<void> {
    const file = await this.#open(share, name);
    this.bytesRead += readFloats(file, name, start, values);
  }

  [Symbol.dispose](): void {
    for (const { file } of this.#files.values()) file.close();
  }

  /** The file of a share, which has as many elements as its box. */
  async #open({ file: name, box }: SavedShare, tensor: string): Promise<SafetensorsFile> {
    const opened = this.#files.get(name) ?? await this.#openFirst(name);
    this.#files.set(name, opened);
    const { file } = opened;
    const { code, byteLength } = file.get(tensor);
    const numel = numelOf(box.sizes);
    if (code === float32.safetensors && byteLength === numel * float32.byteLength) return file;
    throw new CheckpointError(file.path, `Expected ${numel} F32, got ${byteLength} bytes of ${code}`, tensor);
  }

  async #openFirst(name: string): Promise<{ readonly file: SafetensorsFile; readonly bytes: VerifiedFile }> {
    const written = this.#written.get(name);
    if (written === undefined) throw new CheckpointError(this.#path, `the manifest has no file '${name}'`);
    using opened = new DisposableStack();
    const bytes = opened.use(openVerified(`${this.#path}/${name}`, written));
    const file = await openSafetensors(bytes.path, () => bytes);
    opened.move();
    return { file, bytes };
  }
}
