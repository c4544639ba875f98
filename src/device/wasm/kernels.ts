/**
 * The kernel table over the WASM kernels: names and order of arguments as in the contract, dtypes checked, arrays of
 * sizes passed through the module's parameter area. The arithmetic is in `wasm/src/`.
 *
 * @module
 */
import type { KernelExports } from "../../../wasm/mod.ts";
import type { ExactMath, KernelTable } from "../kernels.ts";
import { arrayKernels } from "./array_kernels.ts";
import { layerKernels } from "./layer_kernels.ts";
import { Parameters } from "./parameters.ts";
import { trainingKernels } from "./training_kernels.ts";

/**
 * The kernels of a CPU device.
 *
 * @param exports an instance of a kernel module
 * @param memory the memory that it was made with; its size must never change
 */
export function wasmKernels(exports: KernelExports, memory: WebAssembly.Memory): KernelTable {
  const parameters = new Parameters(memory, exports.parameter_area() >>> 0);
  return {
    ...arrayKernels(exports, parameters),
    ...layerKernels(exports, parameters),
    ...trainingKernels(exports, parameters),
  };
}

/**
 * Functions of one number with the same bits in every runtime.
 *
 * @param exports an instance of a kernel module
 */
export function exactMath(exports: KernelExports): ExactMath {
  return {
    exp: exports.exact_exp,
    log: exports.exact_log,
    sin: exports.exact_sin,
    cos: exports.exact_cos,
    pow: exports.exact_pow,
  };
}
