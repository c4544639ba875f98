/**
 * Operations and bytes of kernels' calls by the table of kernels, for any device.
 *
 * @module
 */
import { NO_PTR } from "../device.ts";
import { accessesOf, flopsOf } from "./accesses.ts";
import { type Kernels, makeKernels } from "./table.ts";

/** Operations and bytes of a call. */
export interface KernelWork {
  /** Floating-point operations, as entries count them. */
  readonly flops: number;
  /** Bytes read and written, each element once; updated elements count twice. */
  readonly bytes: number;
}

/** Kernels that compute nothing, and hand the work of each call to `take`. */
export function countingKernels(take: (work: KernelWork) => void): Kernels {
  return makeKernels((_name, entry) => (args) => {
    let bytes = 0;
    for (const { direction, movedBytes } of accessesOf(entry, args, NO_PTR)) {
      bytes += direction === "updates" ? 2 * movedBytes : movedBytes;
    }
    take({ flops: flopsOf(entry, args), bytes });
  });
}
