/**
 * Rows of a table by token id, and their gradient, a scatter-add.
 *
 * @module
 */
import { at } from "../at.ts";
import { int32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { twoSizes } from "../shape.ts";
import { writeFloat32 } from "./convert.ts";
import type { ComputeOp } from "./op.ts";

export interface EmbeddingAttrs {
  /** The row that gets no gradient from lookups; -1 for none. */
  readonly paddingIdx: number;
}

/** weight [vocab, cols], ids int32 [..] → [.., cols]. */
export const embeddingOp: ComputeOp<EmbeddingAttrs> = {
  name: "embedding",
  infer: ([weight, ids]) => {
    if (weight === undefined || ids === undefined || ids.dtype !== int32) {
      throw new DTypeError(
        "embedding",
        "ids must be int32, as tensor() makes with dtype int32",
        ids?.dtype.name ?? "nothing",
      );
    }
    if (weight.ndim !== 2) throw new ShapeError("embedding", "the table must have two dims", weight.shape);
    return [{ shape: [...ids.shape, at(weight.shape, 1, "dim")], dtype: weight.dtype }];
  },
  forward: (call) => {
    const [weight, ids] = [call.dense(call.input(0)), call.dense(call.input(1))];
    const [vocab, cols] = twoSizes("embedding", weight.shape);
    const sizes = { dtype: weight.dtype, n: ids.numel, vocab, cols };
    call.device.kernels.embedding({ ...sizes, y: call.output(0).ptr, w: weight.ptr, ids: ids.ptr });
    call.save(ids);
  },
  backward: (call) => {
    if (!call.needs(0)) return;
    const ids = call.saved(0);
    const [vocab, cols] = twoSizes("embedding", call.spec(0).shape);
    const dy = call.dense(call.grad(0));
    const args = { dtype: dy.dtype, n: ids.numel, vocab, cols, ...call.attrs, dy: dy.ptr, ids: ids.ptr };
    writeFloat32(call, 0, (dw) => call.device.kernels.embeddingBackward({ ...args, dw }));
  },
};
