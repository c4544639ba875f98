/**
 * Elements between files and device memory, in pieces, so that no tensor is ever whole on the host.
 *
 * @module
 */
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { bfloat16, type DType, float32 } from "../dtype.ts";
import { UnsupportedError } from "../errors.ts";
import { decodeToFloat32, encodeBfloat16 } from "./float_bytes.ts";
import type { HeldTensor } from "./state_dict.ts";

/** Elements moved at once: 4 MiB of float32. */
const PIECE = 1 << 20;

/** Anything with tensors of which byte ranges can be read. */
export interface TensorReader {
  readInto(name: string, byteStart: number, byteEnd: number, destination: Uint8Array): Promise<void>;
}

/** Where elements are read from. */
export interface ElementSource {
  readonly reader: TensorReader;
  /** The tensor's name there. */
  readonly name: string;
  /** The tensor's dtype there: `F16`, `BF16`, `F32` or `F64`. */
  readonly code: string;
  /** Bytes of one element there. */
  readonly width: number;
}

/**
 * Reads elements of a file's tensor into device memory as float32.
 *
 * @param from first element in the file's tensor
 * @param length how many
 * @param ptr where the first goes
 * @returns bytes read from the file
 */
export async function readElements(
  source: ElementSource,
  from: number,
  length: number,
  device: Device,
  ptr: DevicePtr,
): Promise<number> {
  const { reader, name, code, width } = source;
  const piece = Math.min(PIECE, length);
  const bytes = new Uint8Array(piece * width);
  const values = code === "F32" ? undefined : new Float32Array(piece);
  for (let done = 0; done < length; done += piece) {
    const count = Math.min(piece, length - done);
    const raw = bytes.subarray(0, count * width);
    const start = (from + done) * width;
    await reader.readInto(name, start, start + raw.length, raw);
    let floats = raw;
    if (values !== undefined) {
      decodeToFloat32(code, raw, values.subarray(0, count));
      floats = new Uint8Array(values.buffer, 0, count * float32.byteLength);
    }
    device.copyIn(devicePtr(ptr + done * float32.byteLength), floats);
  }
  return length * width;
}

/**
 * Bytes of elements that this rank holds, piece by piece; a piece's memory is used again for the next.
 *
 * @param local first element, counted in the rank's memory
 * @param length how many
 * @param dtype float32 or bfloat16 (rounded to nearest-even)
 */
export function* elementPieces(
  { device, ptr }: HeldTensor,
  local: number,
  length: number,
  dtype: DType,
): Generator<Uint8Array> {
  if (length === 0) return;
  requireStorable(dtype);
  const base = ptr() + local * float32.byteLength;
  const values = new Float32Array(Math.min(PIECE, length));
  for (let done = 0; done < length; done += values.length) {
    const part = values.subarray(0, Math.min(values.length, length - done));
    const bytes = new Uint8Array(part.buffer, 0, part.byteLength);
    device.copyOut(bytes, devicePtr(base + done * float32.byteLength));
    yield dtype === float32 ? bytes : encodeBfloat16(part);
  }
}

/** @throws {UnsupportedError} for dtypes that weights are not written in */
export function requireStorable(dtype: DType): void {
  if (dtype === float32 || dtype === bfloat16) return;
  throw new UnsupportedError(`Cannot write weights as ${dtype.name}: it must be float32 or bfloat16`);
}
