/**
 * The work of a benchmark's call.
 *
 * @module
 */
import type { Kernels } from "../../src/device/kernels/table.ts";
import { countingKernels, type KernelWork } from "../../src/device/kernels/work.ts";

/** The floating-point operations and bytes of the calls to the kernels that `call` receives; nothing is computed. */
export function workOf(call: (kernels: Kernels) => void): KernelWork {
  let [flops, bytes] = [0, 0];
  call(countingKernels((work) => {
    flops += work.flops;
    bytes += work.bytes;
  }));
  return { flops, bytes };
}
