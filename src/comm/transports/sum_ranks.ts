/**
 * Sums over ranks scaled by a number of the host, which the kernel takes in device memory.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import type { ArgsOf } from "../../device/kernels/table.ts";
import { float32 } from "../../dtype.ts";

/** Sums sources and scales the sum; see `sumRanks` in the table of kernels. */
export function sumRanks({ allocator, kernels }: Device, args: Omit<ArgsOf<"sumRanks">, "scale">, scale: number): void {
  if (scale === 1) return kernels.sumRanks(args);
  const word = allocator.allocate(float32.byteLength, "scale of a sum");
  try {
    kernels.fill({ dtype: float32, n: 1, value: scale, dst: word });
    kernels.sumRanks({ ...args, scale: word });
  } finally {
    allocator.free(word);
  }
}
