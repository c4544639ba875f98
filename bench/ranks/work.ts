/**
 * The work of a benchmark's call.
 *
 * @module
 */
import type { Kernels } from "../../src/device/kernels/table.ts";
import { countingKernels, type KernelWork } from "../../src/device/kernels/work.ts";

/** What the calls of the kernels that `call` is given calculate and move; nothing is computed. */
export function workOf(call: (kernels: Kernels) => void): KernelWork {
  let [flops, bytes] = [0, 0];
  call(countingKernels((work) => {
    flops += work.flops;
    bytes += work.bytes;
  }));
  return { flops, bytes };
}
