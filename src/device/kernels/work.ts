/**
 * Operations and bytes of kernels' calls by the table of kernels, for any device.
 *
 * @module
 */
import { flopsReader, movedBytesReader } from "./accesses.ts";
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
  return makeKernels((_name, entry) => {
    const [bytesOf, flopsOf] = [movedBytesReader(entry), flopsReader(entry)];
    return (args) => take({ flops: flopsOf(args), bytes: bytesOf(args) });
  });
}
