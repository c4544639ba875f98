/**
 * Golden files: safetensors as numbers, and the models that `tests/parity/make_reference.py` makes.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { float32, int64 } from "../../src/dtype.ts";

/** One tensor of a golden file. */
export interface Golden {
  readonly shape: readonly number[];
  readonly data: Float32Array<ArrayBuffer> | Int32Array<ArrayBuffer>;
}

/** A golden file. */
export class GoldenFile {
  readonly #tensors: ReadonlyMap<string, Golden>;

  constructor(tensors: ReadonlyMap<string, Golden>) {
    this.#tensors = tensors;
  }

  get names(): readonly string[] {
    return [...this.#tensors.keys()];
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  get(name: string): Golden {
    const golden = this.#tensors.get(name);
    if (golden === undefined) throw new Error(`no '${name}' in the golden file`);
    return golden;
  }

  floats(name: string): Float32Array<ArrayBuffer> {
    const { data } = this.get(name);
    if (!(data instanceof Float32Array)) throw new Error(`'${name}' holds integers`);
    return data;
  }

  ints(name: string): Int32Array<ArrayBuffer> {
    const { data } = this.get(name);
    if (!(data instanceof Int32Array)) throw new Error(`'${name}' holds floats`);
    return data;
  }
}

/** Path of a fixture. */
export function fixturePath(name: string): string {
  return fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
}

/** Reads a safetensors fixture of float32 and int64 tensors. */
export async function readGolden(name: string): Promise<GoldenFile> {
  using file = await openSafetensors(fixturePath(name));
  const tensors = new Map<string, Golden>();
  for (const { name, shape, dtype, byteLength } of file.entries) {
    const bytes = new Uint8Array(byteLength);
    await file.readInto(name, 0, byteLength, bytes);
    if (dtype !== float32 && dtype !== int64) throw new Error(`'${name}' is ${dtype?.name}`);
    const data = dtype === float32
      ? new Float32Array(bytes.buffer)
      : Int32Array.from(new BigInt64Array(bytes.buffer), Number);
    tensors.set(name, { shape, data });
  }
  return new GoldenFile(tensors);
}

/** Reads a JSON fixture. */
export function readJson(name: string): Record<string, unknown> {
  return JSON.parse(readFileSync(fixturePath(name), "utf8"));
}
