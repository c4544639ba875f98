/**
 * What calls of kernels calculate and move, by the table of kernels.
 *
 * @module
 */
import { accessesOf, flopsOf } from "../../src/device/kernels/accesses.ts";
import { type Kernels, makeKernels } from "../../src/device/kernels/table.ts";
import { devicePtr } from "../../src/device/device.ts";

/** Floating-point operations, and bytes read and written, each element once. */
export interface Work {
  readonly flops: number;
  readonly bytes: number;
}

/** The work of the calls that are made of the kernels that `call` is given; nothing is computed. */
export function workOf(call: (kernels: Kernels) => void): Work {
  let [flops, bytes] = [0, 0];
  call(makeKernels((_name, entry) => (args) => {
    flops += flopsOf(entry, args);
    for (const { direction, movedBytes } of accessesOf(entry, args, devicePtr(0))) {
      bytes += direction === "updates" ? 2 * movedBytes : movedBytes;
    }
  }));
  return { flops, bytes };
}
