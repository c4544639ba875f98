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
import { type KernelEntry, OPS } from "../kernels/signature.ts";
import { type KernelCall, type Kernels, makeKernels } from "../kernels/table.ts";

/** Words of the module's area for lists: `LIST_WORDS` of `wasm/src/workspace.rs`. */
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

/** How one parameter is passed. */
interface Slot {
  readonly name: string;
  /** Its place among the numbers of a call. */
  readonly at: number;
  /** What its codes stand for, where it is a name. */
  readonly names: readonly string[];
  readonly isOptional: boolean;
  /** Whether the length of its list is passed too. */
  readonly hasLength: boolean;
}

function isOpKind(kind: string): kind is keyof typeof OPS {
  return kind in OPS;
}

/** The slots of a kernel's arguments, and room for the numbers of a call, of which the status record is always the last. */
function slotsOf(
  entry: KernelEntry,
  status: DevicePtr,
): { readonly slots: readonly Slot[]; readonly numbers: number[] } {
  const slots: Slot[] = [];
  let at = 0;
  const add = (name: string, names: readonly string[], isOptional: boolean, hasLength: boolean): void => {
    slots.push({ name, at, names, isOptional, hasLength });
    at += hasLength ? 2 : 1;
  };
  for (const [name, kind] of Object.entries(entry.values)) {
    const names = typeof kind === "string" && isOpKind(kind) ? OPS[kind] : [];
    add(name, names, false, kind === "shape");
  }
  for (const [name, kind] of Object.entries(entry.arrays)) add(name, [], kind.optional === true, kind.list === true);
  return { slots, numbers: [...new Array<number>(at).fill(0), ...entry.faults ? [status] : []] };
}

/** One loop for all kernels: a call costs some tenths of a microsecond more than by hand, and nothing is compiled at run time. */
function wasmCall(
  kernel: string,
  entry: KernelEntry,
  call: WasmFunction,
  lists: Int32Array,
  status: DevicePtr,
): KernelCall {
  const checks = checksOf(kernel, entry);
  // The numbers are kept between calls: one ends before the next begins.
  const { slots, numbers } = slotsOf(entry, status);
  return (args) => {
    for (let i = 0; i < checks.length; i++) checks[i]?.(args);
    let used = 0;
    for (let i = 0; i < slots.length; i++) {
      const slot = slots[i];
      if (slot === undefined) break;
      const value = args[slot.name];
      if (typeof value === "number") numbers[slot.at] = value;
      else if (typeof value === "boolean") numbers[slot.at] = value ? 1 : 0;
      else if (typeof value === "string") numbers[slot.at] = slot.names.indexOf(value);
      else if (value === undefined) {
        if (!slot.isOptional) throw new InternalError(`'${kernel}' was called without '${slot.name}'`);
        numbers[slot.at] = 0;
      } else if ("code" in value) numbers[slot.at] = value.code;
      else {
        numbers[slot.at] = lists.byteOffset + used * lists.BYTES_PER_ELEMENT;
        if (slot.hasLength) numbers[slot.at + 1] = value.length;
        if (used + value.length > LIST_WORDS) {
          throw new InternalError(`'${kernel}' takes lists of ${LIST_WORDS} words in all, got ${value.length} more`);
        }
        for (const word of value) lists[used++] = word;
      }
    }
    call(...numbers);
  };
}
