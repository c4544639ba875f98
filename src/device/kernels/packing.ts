/**
 * How a call of a kernel is passed to the crate in `wasm/`, derived from the kernel's entry. Each parameter is one number, in order:
 *
 * - an element type and the name of a function are their codes;
 * - a switch is 0 or 1;
 * - an address that is left out is 0;
 * - strides are the address of their list;
 * - a shape and a list of addresses are two numbers, address and length;
 * - the status record comes last.
 *
 * An element of a list is as wide as an address: 64 bits in native libraries, 32 bits in WASM modules.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../errors.ts";
import type { DevicePtr } from "../device.ts";
import { checksOf } from "./arguments.ts";
import { type Arguments, type KernelEntry, OPS, type ValueKind } from "./signature.ts";

/** Words of the area for lists: `LIST_WORDS` of `wasm/src/workspace.rs`. */
export const LIST_WORDS = 4096;

/** The name of a kernel's export. */
export function exportName(kernel: string): string {
  return kernel.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Where the lists of a call go, until it has returned. */
export interface ListArea {
  /** {@link LIST_WORDS} words. */
  readonly words: Int32Array;
  /** The kernels' address of the first one. */
  readonly address: number;
  /** Words of an address, and so of an element of a list: 2 in native libraries, 1 in WASM modules. */
  readonly addressWords: 1 | 2;
}

/** How one parameter is passed. */
interface ArgumentSlot {
  readonly name: string;
  /** The parameter's place among the numbers of a call. */
  readonly at: number;
  /** The names that codes stand for, where the parameter is a name. */
  readonly names: readonly string[];
  readonly isOptional: boolean;
  /** Whether the length of its list is passed too. */
  readonly hasLength: boolean;
  /** What an address of 32 bits holds of the parameter: least and most; undefined where the parameter is no size and no address. */
  readonly narrow: readonly [least: number, most: number] | undefined;
}

/** What 32 bits hold of sizes and addresses, and of strides. */
const [UNSIGNED, SIGNED] = [[0, 2 ** 32 - 1], [-(2 ** 31), 2 ** 31 - 1]] as const;

/** What 32 bits hold of a parameter that is a size, a stride or a list of them. */
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

/** The slots of a kernel's arguments, and how many numbers they are. */
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

/** The functions that a kind names, whose places are their codes; none if it is of another sort. */
export function functionsOf(kind: ValueKind): readonly string[] {
  return Object.entries(OPS).find(([name]) => name === kind)?.[1] ?? [];
}

/** The code of a function's name. */
function codeOf(name: string, names: readonly string[], kernel: string): number {
  const code = names.indexOf(name);
  if (code < 0) throw new InternalError(`'${kernel}' takes ${names.join(", ")}, got '${name}'`);
  return code;
}

/** How many numbers a call passes. */
export function numbersOf(entry: KernelEntry): number {
  return slotsOf(entry).count + (entry.faults ? 1 : 0);
}

/**
 * Makes what checks the arguments of a kernel's calls and writes their numbers. One loop for all kernels: a call costs some
 * tenths of a microsecond more than by hand, and nothing is compiled at run time.
 *
 * @param status where the status record lies
 * @param numbers gets the numbers of each call; at least {@link numbersOf} the entry
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
