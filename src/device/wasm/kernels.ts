/**
 * Calls into a WASM module, derived from the table of kernels.
 *
 * @module
 */
import type { KernelModule } from "../../../wasm/mod.ts";
import type { DevicePtr, PortableMath } from "../device.ts";
import { exportName, LIST_WORDS, type ListArea, numbersOf, packer } from "../kernels/packing.ts";
import { type Kernels, makeKernels } from "../kernels/table.ts";
import type { Pauses } from "../pauses.ts";

/**
 * The kernels of a CPU device.
 *
 * @param memory the memory over which the module was instantiated; its size must never change
 * @param status address of the status record
 */
export function wasmKernels(
  module: KernelModule,
  memory: WebAssembly.Memory,
  status: DevicePtr,
  pauses: Pauses,
): Kernels {
  const words = new Int32Array(memory.buffer, module.listArea, LIST_WORDS);
  const area: ListArea = { words, address: module.listArea, addressWords: 1 };
  return makeKernels((name, entry) => {
    const call = module.function(exportName(name));
    // The numbers are reused: a call ends before the next begins.
    const numbers = new Array<number>(numbersOf(entry)).fill(0);
    const pack = packer(name, entry, status, area, numbers);
    return (args) => {
      pack(args);
      call(...numbers);
      pauses.take();
    };
  });
}

/** Functions of one number with the same bits in every runtime. */
export function portableMath(module: KernelModule): PortableMath {
  return {
    exp: module.function("portable_exp"),
    log: module.function("portable_log"),
    sin: module.function("portable_sin"),
    cos: module.function("portable_cos"),
    pow: module.function("portable_pow"),
  };
}
