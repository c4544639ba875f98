/**
 * GGUF, version 3, as bytes: the header with typed metadata and the table of tensors, whose data follows at multiples of 32
 * bytes. All numbers are little-endian. The layout follows ggml's `docs/gguf.md`.
 *
 * @module
 */
import { at } from "../../at.ts";
import { ArgumentError } from "../../errors.ts";
import { replaceFile } from "../../runtime/files.ts";
import { numelOf, type Shape } from "../../shape.ts";
import type { Encoding } from "./encodings.ts";

/** A value of the metadata, with its type. */
export type GgufValue =
  | { readonly type: "uint32" | "float32"; readonly value: number }
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "string"; readonly value: string }
  | { readonly type: "strings"; readonly value: readonly string[] }
  | { readonly type: "int32s" | "float32s"; readonly value: readonly number[] };

/** Metadata by key, in the order of the file. */
export type GgufMetadata = ReadonlyMap<string, GgufValue>;

/** Numbers of the types. */
const TYPES = { uint32: 4, int32: 5, float32: 6, bool: 7, string: 8, array: 9 } as const;
/** The alignment of each tensor's data, in bytes. */
const ALIGNMENT = 32;
const VERSION = 3;
/** Most dimensions of a tensor in ggml. */
const MAX_DIMS = 4;

/** A tensor of the file. */
export interface GgufTensorSpec {
  readonly name: string;
  /** Sizes of the dims, outermost first; the file has them innermost first. */
  readonly shape: Shape;
  readonly encoding: Encoding;
}

/** An unsigned integer. @throws {ArgumentError} if it is none of 32 bits */
export function uint32(value: number): GgufValue {
  if (Number.isInteger(value) && value >= 0 && value < 2 ** 32) return { type: "uint32", value };
  throw new ArgumentError(`Expected an unsigned integer of 32 bits for GGUF, got ${value}`);
}

/** A number, rounded to float32. */
export function float32(value: number): GgufValue {
  return { type: "float32", value };
}

/** A truth value. */
export function bool(value: boolean): GgufValue {
  return { type: "bool", value };
}

/** A text. */
export function string(value: string): GgufValue {
  return { type: "string", value };
}

/** The bytes before the tensors' data, and the places of the tensors. */
interface Header {
  readonly bytes: Uint8Array;
  /** Bytes of each tensor's data, without the padding before the next. */
  readonly byteLengths: readonly number[];
}

/** The bytes before the first tensor. */
function renderHeader(metadata: GgufMetadata, specs: readonly GgufTensorSpec[]): Header {
  const out = new ByteList();
  out.raw(new TextEncoder().encode("GGUF"));
  out.uint32(VERSION);
  out.uint64(specs.length);
  out.uint64(metadata.size);
  for (const [key, value] of metadata) {
    out.string(key);
    out.value(value);
  }
  let offset = 0;
  const byteLengths = specs.map(({ name, shape, encoding }) => {
    if (shape.length > MAX_DIMS) throw new ArgumentError(`Tensor '${name}' has ${shape.length} dims, GGUF takes 4`);
    const byteLength = encoding.byteLength(numelOf(shape));
    out.string(name);
    out.uint32(shape.length);
    for (const size of [...shape].reverse()) out.uint64(size);
    out.uint32(encoding.ggmlType);
    out.uint64(offset);
    offset += padded(byteLength);
    return byteLength;
  });
  out.raw(new Uint8Array(padded(out.length) - out.length));
  return { bytes: out.bytes(), byteLengths };
}

/**
 * Writes a complete file: aside, synced, then renamed, so that a failure leaves what was there before.
 *
 * @param produce the bytes of a tensor, in pieces of any length; asked once for each tensor, in this order. A piece has
 *   been written when the next is asked for, so its memory may be used again
 * @returns bytes of the file
 * @throws {ArgumentError} if a tensor's pieces are not as long as its shape says
 * @throws {FileError} if it cannot be written
 */
export function writeGguf(
  path: string,
  metadata: GgufMetadata,
  specs: readonly GgufTensorSpec[],
  produce: (spec: GgufTensorSpec, index: number) => Iterable<Uint8Array>,
): number {
  const { bytes, byteLengths } = renderHeader(metadata, specs);
  let fileLength = bytes.length;
  function* pieces(): Iterable<Uint8Array> {
    yield bytes;
    for (const [i, spec] of specs.entries()) {
      const byteLength = at(byteLengths, i, "byte length of tensor");
      let written = 0;
      for (const piece of produce(spec, i)) {
        written += piece.length;
        if (written > byteLength) break;
        yield piece;
      }
      if (written !== byteLength) {
        throw new ArgumentError(`Tensor '${spec.name}' takes ${byteLength} bytes, got ${written}`);
      }
      const fill = padded(byteLength) - byteLength;
      if (fill > 0) yield new Uint8Array(fill);
      fileLength += byteLength + fill;
    }
  }
  replaceFile(path, pieces());
  return fileLength;
}

function padded(length: number): number {
  return Math.ceil(length / ALIGNMENT) * ALIGNMENT;
}

/** Bytes that grow. */
class ByteList {
  #bytes = new Uint8Array(1 << 16);
  #view = new DataView(this.#bytes.buffer);
  readonly #encoder = new TextEncoder();
  length = 0;

  bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.length);
  }

  raw(bytes: Uint8Array): void {
    const start = this.#take(bytes.length);
    this.#bytes.set(bytes, start);
  }

  uint32(value: number): void {
    const start = this.#take(4);
    this.#view.setUint32(start, value, true);
  }

  uint64(value: number): void {
    const start = this.#take(8);
    this.#view.setBigUint64(start, BigInt(value), true);
  }

  string(text: string): void {
    const bytes = this.#encoder.encode(text);
    this.uint64(bytes.length);
    this.raw(bytes);
  }

  value({ type, value }: GgufValue): void {
    switch (type) {
      case "uint32":
        this.uint32(TYPES.uint32);
        return this.uint32(value);
      case "float32":
        this.uint32(TYPES.float32);
        return this.#float32(value);
      case "bool":
        this.uint32(TYPES.bool);
        return this.raw(Uint8Array.of(value ? 1 : 0));
      case "string":
        this.uint32(TYPES.string);
        return this.string(value);
      case "strings":
        this.#array(TYPES.string, value.length);
        for (const text of value) this.string(text);
        return;
      case "int32s":
        this.#array(TYPES.int32, value.length);
        for (const number of value) this.uint32(number);
        return;
      case "float32s":
        this.#array(TYPES.float32, value.length);
        for (const number of value) this.#float32(number);
        return;
    }
  }

  #float32(value: number): void {
    const start = this.#take(4);
    this.#view.setFloat32(start, value, true);
  }

  #array(type: number, length: number): void {
    this.uint32(TYPES.array);
    this.uint32(type);
    this.uint64(length);
  }

  #take(count: number): number {
    const start = this.length;
    this.length += count;
    if (this.length > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(2 * this.#bytes.length, this.length));
      grown.set(this.#bytes);
      this.#bytes = grown;
      this.#view = new DataView(grown.buffer);
    }
    return start;
  }
}
