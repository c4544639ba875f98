/**
 * What calls of kernels calculate and move, by the table of kernels, whatever computes them.
 *
 * @module
 */
import { NO_PTR } from "../device.ts";
import { accessesOf, flopsOf } from "./accesses.ts";
import { type Kernels, makeKernels } from "./table.ts";

/** What calls take. */
export interface KernelWork {
  /** Floating-point operations, as entries count them. */
  readonly flops: number;
  /** Bytes read and written, each element once; what is updated is both. */
  readonly bytes: number;
}

/** Kernels that compute nothing, and tell `take` what each call would. */
export function countingKernels(take: (work: KernelWork) => void): Kernels {
  return makeKernels((_name, entry) => (args) => {
    let bytes = 0;
    for (const { direction, movedBytes } of accessesOf(entry, args, NO_PTR)) {
      bytes += direction === "updates" ? 2 * movedBytes : movedBytes;
    }
    take({ flops: flopsOf(entry, args), bytes });
  });
}
