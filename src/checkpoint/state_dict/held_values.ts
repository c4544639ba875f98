/**
 * Values that this rank holds, between its memory, whatever dtype that has, and float32 on the host.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../../device/device.ts";
import { bfloat16, type DType, float32, uint8 } from "../../dtype.ts";
import { decodeToFloat32, encodeBfloat16, encodeFloat16 } from "../format/float_bytes.ts";
import type { HeldTensor } from "./state_dict.ts";

/** Bytes of float32 values in a dtype, rounded to nearest-even; float32's are the values' own memory. uint8 has integers alone. */
export function encoded(dtype: DType, values: Float32Array<ArrayBuffer>): Uint8Array {
  if (dtype === float32) return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  if (dtype === uint8) return Uint8Array.from(values);
  return dtype === bfloat16 ? encodeBfloat16(values) : encodeFloat16(values);
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
 */
export function writeHeld(held: HeldTensor, local: number, values: Float32Array<ArrayBuffer>): void {
  if (held.blocks !== undefined) held.blocks.write(local, values);
  else if (values.length > 0) held.device.copyIn(placeOf(held, local), encoded(held.dtype, values));
}
