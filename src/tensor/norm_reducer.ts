/**
 * Combines the parts of a norm that other ranks hold. A reducer belongs to a parameter's layout over the ranks, not to a group: if the
 * parameter is cut over an axis, its parts are added over that axis too; if each rank of the axis has a copy, they are not.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import type { DType } from "../dtype.ts";

/** Combines the parts of a norm that other ranks hold: in place, and without rounding. */
export interface NormReducer {
  /**
   * Sums the int64 limbs of exact accumulators over the ranks, or takes the largest of floats.
   *
   * @param n how many elements
   */
  allReduce(ptr: DevicePtr, n: number, dtype: DType, op: "sum" | "max"): void;
}

/** Combined reducers, by their first and their second reducer. */
const CHAINS: WeakMap<NormReducer, WeakMap<NormReducer, NormReducer>> = new WeakMap();

/** Combines over several axes in turn: sums are exact, so the order of the axes does not matter. Equal lists give the same object. */
export function reduceOver(reducers: readonly NormReducer[]): NormReducer | undefined {
  const [first, ...rest] = reducers;
  return first && rest.reduce((before, next) => {
    const known = CHAINS.get(before) ?? new WeakMap<NormReducer, NormReducer>();
    CHAINS.set(before, known);
    const chain = known.get(next) ?? {
      allReduce(...parts: Parameters<NormReducer["allReduce"]>): void {
        before.allReduce(...parts);
        next.allReduce(...parts);
      },
    };
    known.set(next, chain);
    return chain;
  }, first);
}
