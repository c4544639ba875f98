/**
 * The parts of a gradient's norm, added over a group.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { NormReducer } from "../tensor/norm_reducer.ts";

/** One reducer a group: norms are summed once for each. */
const REDUCERS: WeakMap<ProcessGroup, NormReducer> = new WeakMap();

/** The reducer that adds parts of norms over a group. */
export function normReducerOf(group: ProcessGroup): NormReducer {
  const reducer = REDUCERS.get(group) ?? {
    allReduce: (ptr, n, dtype, op) => group.allReduce(ptr, n, dtype, { op, unit: "gradient norm" }).wait(),
  };
  REDUCERS.set(group, reducer);
  return reducer;
}
