/**
 * Values that this rank holds, between its memory, whatever dtype that has, and float32 on the host.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../../device/device.ts";
import { type DType, float32, uint8 } from "../../dtype.ts";
import { decodeToFloat32, encodeFloats } from "../format/float_bytes.ts";
import type { HeldTensor } from "./state_dict.ts";

/** As {@link encodeFloats}; uint8 has integers alone. */
export function encoded(dtype: DType, values: Float32Array<ArrayBuffer>, tensor: string): Uint8Array {
  return dtype === uint8 ? Uint8Array.from(values) : encodeFloats(dtype, values, tensor);
}

/** Address of an element that this rank holds, counted in its memory. */
export function placeOf({ dtype, ptr }: Pick<HeldTensor, "dtype" | "ptr">, local: number): DevicePtr {
  return devicePtr(ptr() + local * dtype.byteLength);
}

/** Reads elements, from `local` on in this rank's memory, as many as `values` has. */
export function readHeld(held: HeldTensor, local: number, values: Float32Array<ArrayBuffer>): void {
  if (values.length === 0) return;
  const { device, dtype, blocks } = held;
  if (blocks !== undefined) return blocks.read(local, values);
  const bytes = dtype === float32
    ? new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
    : new Uint8Array(values.length * dtype.byteLength);
  device.copyOut(bytes, placeOf(held, local));
  if (dtype === uint8) values.set(bytes);
  else if (dtype !== float32) decodeToFloat32(dtype.safetensors, bytes, values);
}

/**
 * Writes elements, from `local` on in this rank's memory, rounded to nearest-even where it is narrower. Where it lies in blocks, a block
 * is quantized when all of its elements have come.
 *
 * @throws {NonFiniteError} as {@link encodeFloats}
 */
export function writeHeld(held: HeldTensor, local: number, values: Float32Array<ArrayBuffer>): void {
  if (held.blocks !== undefined) held.blocks.write(local, values);
  else if (values.length > 0) held.device.copyIn(placeOf(held, local), encoded(held.dtype, values, held.name));
}
