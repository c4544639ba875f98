/**
 * The header of a safetensors file: 8 bytes little-endian length, then JSON that gives each tensor a dtype, a shape and a
 * range of the bytes after it. Pure: bytes in, table out, and back. Files are left to `safetensors.ts`.
 *
 * Input is hostile. Invariant of a parsed header: the tensors' ranges cover the data exactly, without gap or overlap,
 * and each is as long as its shape and dtype say, so nobody after this file checks an offset again.
 *
 * @module
 */
import { at } from "../../at.ts";
import { type DType, DTYPES } from "../../dtype.ts";
import { ArgumentError, CheckpointError, InternalError } from "../../errors.ts";
import { isJsonObject, kindOf, parseJsonObject } from "../../json.ts";
import type { Shape } from "../../shape.ts";
import { countOf } from "../../words.ts";

/** Largest header that is read, in bytes; the format's own limit. */
const MAX_HEADER_LENGTH = 100_000_000;

/** Bits of one element of each dtype of the format. */
const ELEMENT_BITS: ReadonlyMap<string, number> = new Map([
  ...ofBits(4, "F4"),
  ...ofBits(6, "F6_E2M3", "F6_E3M2"),
  ...ofBits(8, "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
  ...ofBits(16, "I16", "U16", "F16", "BF16"),
  ...ofBits(32, "I32", "U32", "F32"),
  ...ofBits(64, "C64", "F64", "I64", "U64"),
]);

/** One tensor of a file. */
export interface SafetensorsEntry {
  /** An FQN in model files. */
  readonly name: string;
  /** The dtype as the file spells it, e.g. `BF16`. */
  readonly code: string;
  /** That dtype, where this library has it; `undefined` for `F16`, `BOOL` and others, whose bytes can be read all the same. */
  readonly dtype: DType | undefined;
  readonly shape: Shape;
  /** The place of the tensor's first byte, counted from the start of the file. */
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** The parsed header of a file. */
export interface SafetensorsHeader {
  /** All tensors in the order of their bytes. */
  readonly entries: readonly SafetensorsEntry[];
  /** The file's own key-value pairs. */
  readonly metadata: ReadonlyMap<string, string>;
  /** The place of the first byte of data, counted from the start of the file. */
  readonly dataOffset: number;
}

/** One tensor to be written. */
export interface SafetensorsSpec {
  readonly name: string;
  /** The tensor's dtype, or the format's name of one that this library lacks, e.g. `BOOL`. */
  readonly dtype: DType | string;
  readonly shape: Shape;
}

/**
 * Length of the header's JSON, from the first 8 bytes of a file, if it has them.
 *
 * @throws {CheckpointError} if the file cannot hold such a header, or it is larger than {@link MAX_HEADER_LENGTH}
 */
export function headerLength(bytes: Uint8Array, fileLength: number, file: string): number {
  const refuse = (detail: string): CheckpointError => new CheckpointError(file, detail);
  if (fileLength < 8 || bytes.length < 8) {
    throw refuse(`A safetensors file has at least 8 bytes, got ${fileLength}: it is cut off or empty`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, 8);
  const length = view.getUint32(4, true) * 2 ** 32 + view.getUint32(0, true);
  if (length > MAX_HEADER_LENGTH) {
    const swapped = view.getUint32(0, false) * 2 ** 32 + view.getUint32(4, false);
    const hint = swapped > 1 && swapped <= fileLength - 8
      ? ": the length must be little-endian and looks big-endian"
      : ": this is no safetensors file, or it is damaged";
    throw refuse(`A header has at most ${MAX_HEADER_LENGTH} bytes, got ${length}${hint}`);
  }
  if (length > fileLength - 8) {
    throw refuse(
      `The header should have ${length} bytes, got ${fileLength - 8} up to the end of the file: it is cut off`,
    );
  }
  if (length < 2) throw refuse(`A header has at least 2 bytes, got ${length}`);
  return length;
}

/**
 * Reads and checks a header.
 *
 * @param bytes the start of the file with the full header; more may follow
 * @throws {CheckpointError} naming what was expected and found, and the tensor
 */
export function parseHeader(bytes: Uint8Array, fileLength: number, file: string): SafetensorsHeader {
  const length = headerLength(bytes, fileLength, file);
  if (bytes.length < 8 + length) {
    throw new CheckpointError(file, `The header should have ${length} bytes, got ${bytes.length - 8}`);
  }
  const first = at(bytes, 8, "byte");
  if (first !== 0x7b) {
    const found = first.toString(16).padStart(2, "0");
    throw new CheckpointError(file, `A header starts with '{' (byte 0x7b), got byte 0x${found}`);
  }
  const dataOffset = 8 + length;
  // Depth 3: header, tensor, its shape. The limit also keeps the parser's stack small.
  const json = parseJsonObject(bytes.subarray(8, dataOffset), { file, what: "header", maxDepth: 3 });
  let metadata: ReadonlyMap<string, string> = new Map();
  const entries: SafetensorsEntry[] = [];
  for (const [name, value] of Object.entries(json)) {
    if (name === "__metadata__") metadata = parseMetadata(value, file);
    else entries.push(parseEntry(name, value, dataOffset, fileLength, file));
  }
  entries.sort((a, b) => a.byteOffset - b.byteOffset || a.byteLength - b.byteLength || (a.name < b.name ? -1 : 1));
  checkCover(entries, dataOffset, fileLength, file);
  return { entries, metadata, dataOffset };
}

/**
 * The code of the dtype and the number of bytes that a tensor is stored with. @throws {ArgumentError} for a shape or dtype that
 * cannot be
 */
export function storedAs({ name, dtype, shape }: SafetensorsSpec): Pick<SafetensorsEntry, "code" | "byteLength"> {
  const code = typeof dtype === "string" ? dtype : dtype.safetensors;
  const byteLength = shape.every(isSize) ? tensorByteLength(code, shape) : undefined;
  if (byteLength !== undefined) return { code, byteLength };
  throw new ArgumentError(`Cannot store tensor '${name}' as ${code} [${shape.join(", ")}]`);
}

/**
 * Plans a file: where each tensor's bytes go, and the bytes before them.
 *
 * Tensors are ordered by falling element size, and in the order given within one, so every tensor starts on a multiple of
 * its element's size; the header is padded with blanks to a multiple of 8.
 *
 * @param metadata the file's own key-value pairs
 * @returns the table, and the first bytes of the file
 * @throws {ArgumentError} if a name is repeated or reserved, a shape or dtype cannot be, or the header is too large
 */
export function renderHeader(
  specs: readonly SafetensorsSpec[],
  metadata: Readonly<Record<string, string>>,
): SafetensorsHeader & { readonly bytes: Uint8Array; readonly fileLength: number } {
  const names = new Set<string>();
  const planned = specs.map((spec) => {
    const { name, shape } = spec;
    if (name === "__metadata__" || name.includes("\0") || names.has(name)) {
      throw new ArgumentError(`A tensor's name must be unique, not '__metadata__' and without NUL, got '${name}'`);
    }
    names.add(name);
    const { code, byteLength } = storedAs(spec);
    return { name, code, dtype: dtypeOf(code), shape, byteLength };
  });
  planned.sort((a, b) => bitsOf(b.code) - bitsOf(a.code));

  // Written by hand: an object would move names that look like numbers to its front.
  const parts: string[] = [];
  const pairs = Object.entries(metadata);
  if (pairs.length > 0) parts.push(`"__metadata__":${JSON.stringify(metadata)}`);
  const starts: number[] = [];
  let end = 0;
  for (const { name, code, shape, byteLength } of planned) {
    starts.push(end);
    const offsets = `[${end},${end += byteLength}]`;
    parts.push(
      `${JSON.stringify(name)}:{"dtype":"${code}","shape":${JSON.stringify(shape)},"data_offsets":${offsets}}`,
    );
  }
  const json = new TextEncoder().encode(`{${parts.join(",")}}`);
  const length = Math.ceil(json.length / 8) * 8;
  if (length > MAX_HEADER_LENGTH) {
    throw new ArgumentError(`A header has at most ${MAX_HEADER_LENGTH} bytes, got ${length}: write several files`);
  }
  const bytes = new Uint8Array(8 + length).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(json, 8);
  const entries = planned.map((entry, i) => ({
    ...entry,
    byteOffset: bytes.length + at(starts, i, "start of tensor"),
  }));
  return { entries, metadata: new Map(pairs), dataOffset: bytes.length, bytes, fileLength: bytes.length + end };
}

function parseMetadata(value: unknown, file: string): ReadonlyMap<string, string> {
  if (!isJsonObject(value)) {
    throw new CheckpointError(file, `'__metadata__' must be an object of strings, got ${kindOf(value)}`);
  }
  const metadata = new Map<string, string>();
  for (const [key, text] of Object.entries(value)) {
    if (typeof text !== "string") {
      const got = `${kindOf(text)} for ${JSON.stringify(key)}`;
      throw new CheckpointError(file, `'__metadata__' must hold strings, got ${got}`);
    }
    metadata.set(key, text);
  }
  return metadata;
}

function parseEntry(
  name: string,
  value: unknown,
  dataOffset: number,
  fileLength: number,
  file: string,
): SafetensorsEntry {
  const refuse = (detail: string): CheckpointError => new CheckpointError(file, detail, name);
  if (name.includes("\0")) throw refuse("A tensor's name must not hold NUL");
  if (!isJsonObject(value)) throw refuse(`Expected an object with dtype, shape and data_offsets, got ${kindOf(value)}`);
  const unknown = Object.keys(value).find((key) => key !== "dtype" && key !== "shape" && key !== "data_offsets");
  if (unknown !== undefined) {
    throw refuse(`Expected dtype, shape and data_offsets only, got ${JSON.stringify(unknown)}`);
  }
  const { dtype: code, shape, data_offsets: offsets } = value;
  if (typeof code !== "string" || !ELEMENT_BITS.has(code)) {
    throw refuse(`The dtype must be one of ${[...ELEMENT_BITS.keys()].join(", ")}, got ${kindOf(code)}`);
  }
  if (!Array.isArray(shape) || !shape.every(isSize)) {
    throw refuse(`The shape must be an array of integers from 0 to 2^53 - 1, got ${kindOf(shape)}`);
  }
  const expected = tensorByteLength(code, shape);
  if (expected === undefined) throw refuse(`The size of ${code} ${kindOf(shape)} must be whole bytes below 2^53`);
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isSize)) {
    throw refuse(`data_offsets must be two integers from 0 to 2^53 - 1, got ${kindOf(offsets)}`);
  }
  const [begin, end] = [at(offsets, 0, "offset"), at(offsets, 1, "offset")];
  if (end < begin) throw refuse(`data_offsets must not fall, got [${begin}, ${end}]`);
  if (end - begin !== expected) {
    throw refuse(`${code} ${kindOf(shape)} takes ${countOf(expected, "byte")}, got ${end - begin} by data_offsets`);
  }
  if (end > fileLength - dataOffset) {
    throw refuse(
      `Data should reach to byte ${end}, got ${countOf(fileLength - dataOffset, "byte")} of data: the file is cut off`,
    );
  }
  return { name, code, dtype: dtypeOf(code), shape, byteOffset: dataOffset + begin, byteLength: expected };
}

function checkCover(
  entries: readonly SafetensorsEntry[],
  dataOffset: number,
  fileLength: number,
  file: string,
): void {
  let end = dataOffset;
  let last = "the header";
  for (const { name, byteOffset, byteLength } of entries) {
    if (byteOffset !== end) {
      const detail = byteOffset < end
        ? `Bytes must belong to one tensor, got an overlap of ${countOf(end - byteOffset, "byte")} with ${last}`
        : `Data must have no holes, got ${countOf(byteOffset - end, "byte")} between ${last} and it`;
      throw new CheckpointError(file, detail, name);
    }
    end = byteOffset + byteLength;
    last = `'${name}'`;
  }
  if (end === fileLength) return;
  throw new CheckpointError(
    file,
    `The file should end after ${last} at byte ${end}, got ${fileLength} bytes: ${
      countOf(fileLength - end, "trailing byte")
    }`,
  );
}

/** Bits of an element of a dtype that is in the table. */
function bitsOf(code: string): number {
  const bits = ELEMENT_BITS.get(code);
  if (bits === undefined) throw new InternalError(`no size of an element of '${code}'`);
  return bits;
}

/** Bytes of a tensor; `undefined` if the dtype is unknown, or the size no whole number of bytes or above 2^53. */
function tensorByteLength(code: string, shape: Shape): number | undefined {
  let bits = ELEMENT_BITS.get(code);
  if (bits === undefined) return undefined;
  for (const size of shape) bits *= size;
  return Number.isSafeInteger(bits) && bits % 8 === 0 ? bits / 8 : undefined;
}

function ofBits(bits: number, ...codes: readonly string[]): (readonly [string, number])[] {
  return codes.map((code) => [code, bits]);
}

function dtypeOf(code: string): DType | undefined {
  return DTYPES.find(({ safetensors }) => safetensors === code);
}

/** True if a value is a size: an exact integer from 0. JSON has -0, which is not one. */
function isSize(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 && !Object.is(value, -0);
}
