/**
 * The largest elements of each row.
 *
 * @module
 */
import { KERNELS } from "../device/kernels/table.ts";
import { int32 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { matrixOf } from "../shape.ts";
import { floatInput } from "./check.ts";
import type { ComputeOp } from "./op.ts";

const MAX_COLS = KERNELS.topk.values.cols.atMost;

/** x [.., cols] → int32 [.., k]: columns of the k largest of each row, the largest first; constants. */
export const topkOp: ComputeOp<number> = {
  name: "topk",
  infer: (inputs, k) => {
    const x = floatInput("topk", inputs);
    const cols = x.shape.at(-1);
    if (cols === undefined || k < 1 || k > cols || cols > MAX_COLS) {
      throw new ShapeError("topk", `rows must have from ${k} to ${MAX_COLS} elements`, x.shape);
    }
    return [{ shape: x.shape.with(-1, k), dtype: int32 }];
  },
  forward: (call) => {
    const x = call.dense(call.input(0));
    const args = { dtype: x.dtype, ...matrixOf(x), k: call.attrs };
    call.device.kernels.topk({ ...args, indices: call.output(0).ptr, x: x.ptr });
  },
};
