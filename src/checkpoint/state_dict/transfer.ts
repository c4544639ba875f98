/**
 * Elements between files and device memory, in pieces, so that the host never holds a full tensor.
 *
 * @module
 */
import { devicePtr } from "../../device/device.ts";
import { COMPUTE_DTYPES, type DType, float32 } from "../../dtype.ts";
import { UnsupportedError } from "../../errors.ts";
import { type Box, placedBoxes, sharedSlices } from "../../tensor/shard_layout.ts";
import { decodeToFloat32, floatWidth } from "../format/float_bytes.ts";
import type { SafetensorsFile } from "../format/safetensors.ts";
import { encoded, placeOf, readHeld, writeHeld } from "./held_values.ts";
import type { HeldTensor } from "./state_dict.ts";

/** Elements moved at once: 1 MiB of float32, which stays in a processor's cache between one use and the next. */
const PIECE = 1 << 18;

/**
 * Reads what this rank holds of a tensor into device memory, in its dtype, from a file that has part of it.
 *
 * @param stored the part that the file's tensor of that name is
 * @param open gives the file; called where the rank holds something of that part
 * @returns bytes read from the file
 */
export async function readElements(
  held: HeldTensor,
  stored: Box,
  open: () => SafetensorsFile | Promise<SafetensorsFile>,
): Promise<number> {
  let bytesRead = 0;
  for (const { box, local } of placedBoxes(held.shard)) {
    for (const { inFirst, inSecond, length } of sharedSlices(box, stored)) {
      bytesRead += await readSlice(await open(), held, inSecond, length, local + inFirst);
    }
  }
  return bytesRead;
}

/** Reads `length` elements of a file's tensor, from element `from` on, to those held from `local` on; returns their bytes in the file. */
async function readSlice(
  file: SafetensorsFile,
  held: HeldTensor,
  from: number,
  length: number,
  local: number,
): Promise<number> {
  const { name, device, dtype: { byteLength: width, safetensors } } = held;
  let bytesRead = 0;
  if (file.get(name).code === safetensors) {
    const ptr = placeOf(held, local);
    const [begin, byteLength] = [from * width, length * width];
    const { hostViews } = device.traits;
    if (hostViews !== undefined) {
      for (const bytes of hostViews(ptr, byteLength)) {
        file.readIntoSync(name, begin + bytesRead, begin + bytesRead + bytes.length, bytes);
        bytesRead += bytes.length;
      }
      return bytesRead;
    }
    for (const piece of file.pieces(name, begin, begin + byteLength)) {
      device.copyIn(devicePtr(ptr + bytesRead), piece);
      bytesRead += piece.length;
    }
    return bytesRead;
  }
  const piece = new Float32Array(Math.min(PIECE, length));
  for (let done = 0; done < length; done += piece.length) {
    const values = piece.subarray(0, Math.min(piece.length, length - done));
    bytesRead += readFloats(file, name, from + done, values);
    writeHeld(held, local + done, values);
  }
  return bytesRead;
}

/** Reads elements of a file's tensor, from element `from` on, as float32; returns their bytes in the file. */
export function readFloats(
  file: SafetensorsFile,
  name: string,
  from: number,
  values: Float32Array<ArrayBuffer>,
): number {
  const { code } = file.get(name);
  const width = floatWidth(code);
  const [start, byteLength] = [from * width, values.length * width];
  const isFloat32 = code === float32.safetensors;
  const raw = isFloat32 ? new Uint8Array(values.buffer, values.byteOffset, byteLength) : new Uint8Array(byteLength);
  file.readIntoSync(name, start, start + byteLength, raw);
  if (!isFloat32) decodeToFloat32(code, raw, values);
  return byteLength;
}

/**
 * Bytes of elements that this rank holds, piece by piece; a piece is to be used before the next is asked for. What has that dtype is not
 * copied where the device shows its memory.
 *
 * @param local first element, counted in the rank's memory
 * @param dtype float32, bfloat16 or float16 (rounded to nearest-even)
 */
export function* elementPieces(
  held: HeldTensor,
  local: number,
  length: number,
  dtype: DType,
): Generator<Uint8Array> {
  if (length === 0) return;
  requireStorable(dtype);
  const { hostViews } = held.device.traits;
  if (dtype === held.dtype && hostViews !== undefined) {
    for (let done = 0; done < length; done += PIECE) {
      const bytes = Math.min(PIECE, length - done) * dtype.byteLength;
      yield* hostViews(placeOf(held, local + done), bytes);
    }
    return;
  }
  const values = new Float32Array(Math.min(PIECE, length));
  for (let done = 0; done < length; done += values.length) {
    const part = values.subarray(0, Math.min(values.length, length - done));
    readHeld(held, local + done, part);
    yield encoded(dtype, part, held.name);
  }
}

/** @throws {UnsupportedError} for dtypes that weights are not written in */
export function requireStorable(dtype: DType): void {
  if (COMPUTE_DTYPES.includes(dtype)) return;
  throw new UnsupportedError(
    `Cannot write weights as ${dtype.name}: it must be ${COMPUTE_DTYPES.map((one) => one.name).join(", ")}`,
  );
}
