/**
 * Calls into the WASM module, derived from the table of kernels. A kernel's export has its name in snake case and takes its
 * parameters in their order, each as one number: an element type and the name of a function as their codes, a switch as 0 or 1,
 * an address left out as 0, strides as the address of their list. A shape or a list of addresses is two, address and length.
 *
 * @module
 */
import type { KernelModule, WasmFunction } from "../../../wasm/mod.ts";
import { InternalError } from "../../errors.ts";
import type { DevicePtr, ExactMath } from "../device.ts";
import { checksOf } from "../kernels/arguments.ts";
import { type KernelEntry, OPS, type ParameterKind } from "../kernels/signature.ts";
import { type KernelCall, type Kernels, makeKernels } from "../kernels/table.ts";

/** Words of the module's area for lists: `PARAMETER_WORDS` of `wasm/src/workspace.rs`. */
const LIST_WORDS = 4096;

/** The name of a kernel's export. */
export function exportName(kernel: string): string {
  return kernel.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/**
 * The kernels of a CPU device.
 *
 * @param memory the memory that the module was instantiated over; its size must never change
 * @param status where the status record lies
 */
export function wasmKernels(module: KernelModule, memory: WebAssembly.Memory, status: DevicePtr): Kernels {
  const lists = new Int32Array(memory.buffer, module.listArea, LIST_WORDS);
  return makeKernels((name, entry) => wasmCall(name, entry, module.function(exportName(name)), lists, status));
}

/** Functions of one number with the same bits in every runtime. */
export function exactMath(module: KernelModule): ExactMath {
  return {
    exp: module.function("exact_exp"),
    log: module.function("exact_log"),
    sin: module.function("exact_sin"),
    cos: module.function("exact_cos"),
    pow: module.function("exact_pow"),
  };
}

/** The names that a parameter's codes stand for, if they do. */
function namesOf(kind: ParameterKind): readonly string[] {
  return kind === "unaryOp" || kind === "binaryOp" || kind === "reduceOp" ? OPS[kind] : [];
}

function wasmCall(
  kernel: string,
  entry: KernelEntry,
  call: WasmFunction,
  lists: Int32Array,
  status: DevicePtr,
): KernelCall {
  const checks = checksOf(kernel, entry);
  const parameters = Object.entries(entry.parameters).map(([name, kind]) => ({
    name,
    names: namesOf(kind),
    isStatus: kind === "status",
    isOptional: typeof kind === "object" && "shape" in kind && kind.optional === true,
    isStrides: kind === "strides",
  }));
  // One array for all calls: a call ends before the next one begins.
  const values: number[] = [];
  return (args) => {
    for (const check of checks) check(args);
    let count = 0;
    let used = 0;
    for (const parameter of parameters) {
      const value = parameter.isStatus ? status : args[parameter.name];
      if (typeof value === "number") values[count++] = value;
      else if (typeof value === "boolean") values[count++] = value ? 1 : 0;
      else if (typeof value === "string") values[count++] = parameter.names.indexOf(value);
      else if (value === undefined) {
        if (!parameter.isOptional) throw new InternalError(`'${kernel}' was called without '${parameter.name}'`);
        values[count++] = 0;
      } else if ("code" in value) values[count++] = value.code;
      else {
        if (used + value.length > LIST_WORDS) {
          throw new InternalError(`'${kernel}' takes lists of ${LIST_WORDS} words in all, got ${value.length} more`);
        }
        values[count++] = lists.byteOffset + 4 * used;
        if (!parameter.isStrides) values[count++] = value.length;
        lists.set(value, used);
        used += value.length;
      }
    }
    call(...values);
  };
}
