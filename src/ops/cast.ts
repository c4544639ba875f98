/**
 * Conversion between float dtypes; the gradient goes back in the input's.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import { castTo } from "./convert.ts";
import type { ComputeOp } from "./op.ts";

/** The values in the dtype given. */
export const castOp: ComputeOp<DType> = {
  name: "cast",
  infer: (inputs, dtype) => inputs.map(({ shape }) => ({ shape, dtype })),
  forward: (call) => {
    castTo(call.output(0), call.dense(call.input(0)));
  },
  backward: (call) => {
    castTo(call.out(0), call.dense(call.grad(0)));
  },
};
