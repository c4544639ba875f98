/**
 * Elements between files and device memory, in pieces, so that no tensor is ever whole on the host.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../../device/device.ts";
import { bfloat16, COMPUTE_DTYPES, type DType, float32 } from "../../dtype.ts";
import { UnsupportedError } from "../../errors.ts";
import { type Box, placedBoxes, sharedSlices } from "../../tensor/shard_layout.ts";
import { decodeToFloat32, encodeBfloat16, encodeFloat16, floatWidth } from "../format/float_bytes.ts";
import type { SafetensorsFile } from "../format/safetensors.ts";
import type { HeldTensor } from "./state_dict.ts";

/** Elements moved at once: 1 MiB of float32, which stays in a processor's cache between one use and the next. */
const PIECE = 1 << 18;

/**
 * Reads what this rank holds of a tensor into device memory, as float32, from a file that has part of it.
 *
 * @param stored the part that the file's tensor of that name is
 * @param open gives the file; called where the rank holds something of that part
 * @returns bytes read from the file
 */
export async function readElements(
  { name, shard, device, ptr }: HeldTensor,
  stored: Box,
  open: () => SafetensorsFile | Promise<SafetensorsFile>,
): Promise<number> {
  let bytesRead = 0;
  for (const { box, local } of placedBoxes(shard)) {
    for (const { inFirst, inSecond, length } of sharedSlices(box, stored)) {
      const first = ptr() + (local + inFirst) * float32.byteLength;
      bytesRead += await readSlice(await open(), name, inSecond, length, device, devicePtr(first));
    }
  }
  return bytesRead;
}

/** Reads `length` elements of a file's tensor, from element `from` on, to `ptr`; returns their bytes in the file. */
async function readSlice(
  file: SafetensorsFile,
  name: string,
  from: number,
  length: number,
  device: HeldTensor["device"],
  ptr: DevicePtr,
): Promise<number> {
  const { byteLength: width, safetensors } = float32;
  let bytesRead = 0;
  if (file.get(name).code === safetensors) {
    const [begin, byteLength] = [from * width, length * width];
    if (device.bytesInPlace !== undefined) {
      for (const bytes of device.bytesInPlace(ptr, byteLength)) {
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
    device.copyIn(devicePtr(ptr + done * width), new Uint8Array(piece.buffer, 0, values.byteLength));
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
 * Bytes of elements that this rank holds, piece by piece; a piece is to be used before the next is asked for. Float32 is not
 * copied where the device shows its memory.
 *
 * @param local first element, counted in the rank's memory
 * @param dtype float32, bfloat16 or float16 (rounded to nearest-even)
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
  if (dtype === float32 && device.bytesInPlace !== undefined) {
    for (let done = 0; done < length; done += PIECE) {
      const bytes = Math.min(PIECE, length - done) * float32.byteLength;
      yield* device.bytesInPlace(devicePtr(base + done * float32.byteLength), bytes);
    }
    return;
  }
  const values = new Float32Array(Math.min(PIECE, length));
  for (let done = 0; done < length; done += values.length) {
    const part = values.subarray(0, Math.min(values.length, length - done));
    const bytes = new Uint8Array(part.buffer, 0, part.byteLength);
    device.copyOut(bytes, devicePtr(base + done * float32.byteLength));
    yield dtype === float32 ? bytes : dtype === bfloat16 ? encodeBfloat16(part) : encodeFloat16(part);
  }
}

/** @throws {UnsupportedError} for dtypes that weights are not written in */
export function requireStorable(dtype: DType): void {
  if (COMPUTE_DTYPES.includes(dtype)) return;
  throw new UnsupportedError(
    `Cannot write weights as ${dtype.name}: it must be ${COMPUTE_DTYPES.map((one) => one.name).join(", ")}`,
  );
}
