/**
 * Passing of a kernel's call to the crate in `wasm/`, derived from the kernel's entry. Each parameter is one number, in order:
 *
 * - a dtype, or the name of a function: its code;
 * - a switch: 0 or 1;
 * - an address that is left out: 0;
 * - strides: the address of their list;
 * - a shape, or a list of addresses: two numbers, address and length;
 * - the status record, last.
 *
 * Elements of a list are as wide as an address: 64 bits in native libraries, 32 bits in WASM modules.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../errors.ts";
import type { DevicePtr } from "../device.ts";
import { checksOf } from "./arguments.ts";
import { type Arguments, type KernelEntry, OPS, type ValueKind } from "./signature.ts";

/** Words of the memory for lists: `LIST_WORDS` of `wasm/src/workspace.rs`. */
export const LIST_WORDS = 4096;

export function exportName(kernel: string): string {
  return kernel.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Memory for the lists of a call, until it has returned. */
export interface ListArea {
  /** {@link LIST_WORDS} words. */
  readonly words: Int32Array;
  /** Address of the first word, for the kernels. */
  readonly address: number;
  /** 32-bit words of an address, and so of a list's element: 2 in native libraries, 1 in WASM modules. */
  readonly addressWords: 1 | 2;
}

/** Passing of one parameter. */
interface ArgumentSlot {
  readonly name: string;
  /** Index of the parameter among the numbers of a call. */
  readonly at: number;
  /** Names by code, where the parameter is a name. */
  readonly names: readonly string[];
  readonly isOptional: boolean;
  /** True if the length of its list is passed too. */
  readonly hasLength: boolean;
  /** Least and largest value that fits in 32 bits, for sizes and addresses; undefined for other parameters. */
  readonly narrow: readonly [least: number, most: number] | undefined;
}

/** Ranges of 32 bits, for sizes and addresses, and for strides. */
const [UNSIGNED, SIGNED] = [[0, 2 ** 32 - 1], [-(2 ** 31), 2 ** 31 - 1]] as const;

/** Range of 32 bits for a parameter that is a size, a stride or a list of them. */
function narrowRange(kind: ValueKind): ArgumentSlot["narrow"] {
  if (kind === "strides") return SIGNED;
  const isSize = kind === "size" || kind === "shape" ||
    (typeof kind === "object" && ("atMost" in kind || "divides" in kind));
  return isSize ? UNSIGNED : undefined;
}

/** Refuses a number that a WASM module would wrap. */
function requireNarrow(value: number, { name, narrow }: ArgumentSlot, kernel: string): void {
  if (narrow === undefined || (value >= narrow[0] && value <= narrow[1])) return;
  throw new UnsupportedError(
    `Cannot run '${kernel}' in WASM with ${value} for '${name}': its memory has 32-bit addresses, so sizes must be below 2^32 ` +
      "and strides below 2^31; use the native kernels, openDevice('cpu') on x86-64 or aarch64 Linux",
  );
}

/** The slots of a kernel's parameters, and the count of their numbers. */
function slotsOf(entry: KernelEntry): { readonly slots: readonly ArgumentSlot[]; readonly count: number } {
  const slots: ArgumentSlot[] = [];
  let at = 0;
  const add = (slot: Omit<ArgumentSlot, "at">): void => {
    slots.push({ ...slot, at });
    at += slot.hasLength ? 2 : 1;
  };
  for (const [name, kind] of Object.entries(entry.values)) {
    const names = functionsOf(kind);
    add({ name, names, isOptional: false, hasLength: kind === "shape", narrow: narrowRange(kind) });
  }
  for (const [name, { optional, list }] of Object.entries(entry.arrays)) {
    add({ name, names: [], isOptional: optional === true, hasLength: list === true, narrow: UNSIGNED });
  }
  return { slots, count: at };
}

/** Names of the functions that a kind chooses from, in the order of their codes; empty for other kinds. */
export function functionsOf(kind: ValueKind): readonly string[] {
  return Object.entries(OPS).find(([name]) => name === kind)?.[1] ?? [];
}

function codeOf(name: string, names: readonly string[], kernel: string): number {
  const code = names.indexOf(name);
  if (code < 0) throw new InternalError(`'${kernel}' takes ${names.join(", ")}, got '${name}'`);
  return code;
}

/** Count of the numbers that a call passes. */
export function numbersOf(entry: KernelEntry): number {
  return slotsOf(entry).count + (entry.faults ? 1 : 0);
}

/**
 * Makes a function that checks the arguments of a kernel's calls and writes their numbers. One loop serves all kernels: it costs
 * some tenths of a microsecond more than code for each kernel, and compiles nothing at run time.
 *
 * @param status address of the status record
 * @param numbers receives the numbers of each call; at least {@link numbersOf} the entry
 */
export function packer(
  kernel: string,
  entry: KernelEntry,
  status: DevicePtr,
  { words, address, addressWords }: ListArea,
  numbers: number[] | Float64Array,
): (args: Arguments) => void {
  const checks = checksOf(kernel, entry);
  const { slots, count } = slotsOf(entry);
  const isNarrow = addressWords === 1;
  const write = (list: readonly number[], slot: ArgumentSlot, used: number): number => {
    for (let i = 0; i < list.length; i++) {
      const value = list[i];
      if (value === undefined) break;
      if (isNarrow) requireNarrow(value, slot, kernel);
      words[used++] = value; // the low 32 bits
      if (!isNarrow) words[used++] = Math.floor(value / 2 ** 32);
    }
    return used;
  };
  return (args) => {
    for (let i = 0; i < checks.length; i++) checks[i]?.(args);
    let used = 0;
    for (let i = 0; i < slots.length; i++) {
      const slot = slots[i];
      if (slot === undefined) break;
      const value = args[slot.name];
      if (typeof value === "number") {
        if (isNarrow) requireNarrow(value, slot, kernel);
        numbers[slot.at] = value;
      } else if (typeof value === "boolean") numbers[slot.at] = value ? 1 : 0;
      else if (typeof value === "string") numbers[slot.at] = codeOf(value, slot.names, kernel);
      else if (value === undefined) {
        if (!slot.isOptional) throw new InternalError(`'${kernel}' was called without '${slot.name}'`);
        numbers[slot.at] = 0;
      } else if ("code" in value) numbers[slot.at] = value.code;
      else {
        used += used % addressWords;
        if (used + value.length * addressWords > LIST_WORDS) {
          throw new InternalError(`'${kernel}' takes lists of ${LIST_WORDS} words in all, got ${value.length} more`);
        }
        numbers[slot.at] = address + used * words.BYTES_PER_ELEMENT;
        if (slot.hasLength) numbers[slot.at + 1] = value.length;
        used = write(value, slot, used);
      }
    }
    if (entry.faults) numbers[count] = status;
  };
}
