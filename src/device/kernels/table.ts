/**
 * The one table of kernels: what every device can compute. How an entry is packed, checked, counted and compared follows from the
 * entry; `docs/adding.md` says how one is added. A device that lacks its own form of a kernel says so (`Device.lacks`).
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { ARRAY_KERNELS } from "./arrays.ts";
import { EXPERT_KERNELS } from "./experts.ts";
import { LAYER_KERNELS } from "./layers.ts";
import { PRODUCT_KERNELS } from "./products.ts";
import type { Arguments, KernelArgs, KernelEntry, KernelTable } from "./signature.ts";
import { TRAINING_KERNELS } from "./training.ts";

/**
 * The tables of kernels as one.
 *
 * @internal
 */
export type Table =
  & typeof ARRAY_KERNELS
  & typeof PRODUCT_KERNELS
  & typeof LAYER_KERNELS
  & typeof EXPERT_KERNELS
  & typeof TRAINING_KERNELS;

/** All kernels. */
export const KERNELS: Table = {
  ...ARRAY_KERNELS,
  ...PRODUCT_KERNELS,
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

/** A kernel's function, as code that is the same for all kernels sees it. */
export type KernelCall = (args: Arguments) => void;

function isComplete(calls: object): calls is Kernels {
  return Object.keys(KERNELS).every((name) => name in calls);
}

/** Whether there is such a kernel. */
export function isKernelName(name: string): name is KernelName {
  return Object.hasOwn(KERNELS, name);
}

/** Kernels, each of which is called by `around`, which may call the one of `beside` with the same arguments. */
export function wrapKernels(
  kernels: Kernels,
  beside: Kernels,
  around: (name: KernelName, call: () => void, other: () => void) => void,
): Kernels {
  const wrap = <K extends KernelName>(name: K): (args: ArgsOf<K>) => void => {
    const call: (args: ArgsOf<K>) => void = kernels[name];
    const other: (args: ArgsOf<K>) => void = beside[name];
    return (args) => around(name, () => call(args), () => other(args));
  };
  const calls = Object.fromEntries(Object.keys(KERNELS).filter(isKernelName).map((name) => [name, wrap(name)]));
  if (!isComplete(calls)) throw new InternalError("a kernel was not wrapped");
  return calls;
}

/** A device's kernels, each made from its entry when it is first called: a run calls few of them. */
export function makeKernels(make: (name: string, entry: KernelEntry) => KernelCall): Kernels {
  const table: KernelTable = KERNELS;
  const onCall = (name: string, entry: KernelEntry): KernelCall => {
    let made: KernelCall | undefined;
    return (args) => (made ??= make(name, entry))(args);
  };
  const calls = Object.fromEntries(Object.entries(table).map(([name, entry]) => [name, onCall(name, entry)]));
  if (!isComplete(calls)) throw new InternalError("a kernel was not made");
  return calls;
}
