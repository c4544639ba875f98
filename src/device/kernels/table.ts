/**
 * The one table of kernels that every device computes. Packing, checks, counts and comparisons follow from a kernel's entry;
 * `docs/adding.md` says how to add one. A device without a kernel lists it in `DeviceTraits.missingKernels`.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { ARRAY_KERNELS } from "./arrays.ts";
import { EXPERT_KERNELS } from "./experts.ts";
import { LAYER_KERNELS } from "./layers.ts";
import { PRODUCT_KERNELS } from "./products.ts";
import { QUANTIZED_KERNELS } from "./quantized.ts";
import type { Arguments, KernelArgs, KernelEntry, KernelTable } from "./signature.ts";
import { TRAINING_KERNELS } from "./training.ts";

/**
 * The tables of kernels, merged.
 *
 * @internal
 */
export type Table =
  & typeof ARRAY_KERNELS
  & typeof PRODUCT_KERNELS
  & typeof QUANTIZED_KERNELS
  & typeof LAYER_KERNELS
  & typeof EXPERT_KERNELS
  & typeof TRAINING_KERNELS;

export const KERNELS: Table = {
  ...ARRAY_KERNELS,
  ...PRODUCT_KERNELS,
  ...QUANTIZED_KERNELS,
  ...LAYER_KERNELS,
  ...EXPERT_KERNELS,
  ...TRAINING_KERNELS,
};

/** Name of a kernel. */
export type KernelName = keyof Table;
/** Arguments of a kernel, e.g. `ArgsOf<"gemm">`. */
export type ArgsOf<K extends KernelName> = KernelArgs<Table[K]>;
/** The functions of a device. */
export type Kernels = { readonly [K in KernelName]: (args: ArgsOf<K>) => void };
/** For each kernel a function of the arguments of its calls. */
export type OfCalls<R> = { readonly [K in KernelName]: (args: ArgsOf<K>) => R };

/** A kernel's function, for code that treats all kernels alike. */
export type KernelCall = (args: Arguments) => void;

function isComplete<R>(calls: object): calls is OfCalls<R> {
  return Object.keys(KERNELS).every((name) => name in calls);
}

/** True if `name` is a kernel. */
export function isKernelName(name: string): name is KernelName {
  return Object.hasOwn(KERNELS, name);
}

/** Wraps each kernel in `around`, which also gets the arguments and the kernel's function of `beside`. */
export function wrapKernels<R>(
  kernels: Kernels,
  beside: OfCalls<R>,
  around: <A>(name: KernelName, args: A, call: (args: A) => void, other: (args: A) => R) => void,
): Kernels {
  const wrap = <K extends KernelName>(name: K): (args: ArgsOf<K>) => void => {
    const call: (args: ArgsOf<K>) => void = kernels[name];
    const other: (args: ArgsOf<K>) => R = beside[name];
    return (args) => around(name, args, call, other);
  };
  const calls = Object.fromEntries(Object.keys(KERNELS).filter(isKernelName).map((name) => [name, wrap(name)]));
  if (!isComplete<void>(calls)) throw new InternalError("a kernel was not wrapped");
  return calls;
}

/** Makes a device's kernels, each from its entry at its first call, as a training uses few of them. */
export function makeKernels<R>(make: (name: string, entry: KernelEntry) => (args: Arguments) => R): OfCalls<R> {
  const table: KernelTable = KERNELS;
  const onCall = (name: string, entry: KernelEntry): (args: Arguments) => R => {
    let made: ((args: Arguments) => R) | undefined;
    return (args) => (made ??= make(name, entry))(args);
  };
  const calls = Object.fromEntries(Object.entries(table).map(([name, entry]) => [name, onCall(name, entry)]));
  if (!isComplete<R>(calls)) throw new InternalError("a kernel was not made");
  return calls;
}
