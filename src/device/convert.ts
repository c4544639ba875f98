/**
 * Conversion of elements between dtypes, quantized ones too.
 *
 * @module
 */
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { asQuantized, type Quantization, type QuantizedDType } from "../quantized.ts";
import type { Device, DevicePtr } from "./device.ts";

/** One conversion. Where a dtype has blocks, the first element begins one. */
export interface Conversion {
  readonly dstDtype: DType;
  readonly srcDtype: DType;
  /** Number of elements. */
  readonly n: number;
  readonly dst: DevicePtr;
  readonly src: DevicePtr;
}

/** Number and kind of blocks. */
export interface BlockArguments {
  readonly format: Quantization;
  readonly blocks: number;
  readonly blockBytes: number;
}

/** The values of kernels by which they know a quantized array. */
export function blocksOf({ format, blockElements, blockBytes }: QuantizedDType, n: number): BlockArguments {
  return { format, blocks: Math.ceil(n / blockElements), blockBytes };
}

/** Converts elements: casts, quantizes float32 or dequantizes. */
export function convertElements(
  { kernels }: Pick<Device, "kernels">,
  { dstDtype, srcDtype, n, dst, src }: Conversion,
): void {
  const [to, from] = [asQuantized(dstDtype), asQuantized(srcDtype)];
  if (n === 0) return;
  if (to === undefined && from === undefined) return kernels.cast({ dstDtype, srcDtype, n, dst, src });
  if (from !== undefined && to === undefined) {
    return kernels.dequantize({ dtype: dstDtype, ...blocksOf(from, n), n, dst, src });
  }
  if (to === undefined || from !== undefined || srcDtype !== float32) {
    throw new InternalError(`no conversion from ${srcDtype.name} to ${dstDtype.name}`);
  }
  kernels.quantize({ ...blocksOf(to, n), n, dst, src });
}
