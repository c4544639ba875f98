/**
 * Rotary position embedding in the half layout (Su et al. 2021; `rotate_half` of transformers).
 *
 * @module
 */
import { float32, int32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { sameShape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ComputeOp, OpContext } from "./op.ts";

/** How the last dim of x divides. */
export interface RopeAttrs {
  /** Elements of a head; the last dim of x is a multiple. */
  readonly headDim: number;
}

function rotate(
  context: OpContext,
  y: Tensor,
  x: Tensor,
  tables: readonly [cos: Tensor, sin: Tensor],
  positions: Tensor | undefined,
  headDim: number,
  inverse: boolean,
): void {
  const [batch = 1, seq = 1, width = headDim] = x.shape;
  const [cos, sin] = tables;
  const [tableRows = 0, half = 0] = cos.shape;
  context.device.kernels.rope({
    dtype: x.dtype,
    batch,
    seq,
    heads: width / headDim,
    headDim,
    half,
    tableRows,
    strideX: width,
    inverse,
    y: y.ptr,
    x: x.ptr,
    cos: cos.ptr,
    sin: sin.ptr,
    positions: positions?.ptr,
  });
}

/** x [batch, seq, heads * headDim], cos and sin float32 [positions, rotaryDim / 2], optional positions int32 [batch, seq]. */
export const ropeOp: ComputeOp<RopeAttrs> = {
  name: "rope",
  infer: ([x, cos, sin, positions], { headDim }) => {
    if (x === undefined || cos === undefined || sin === undefined || cos.dtype !== float32 || sin.dtype !== float32) {
      throw new DTypeError("rope", "the tables must be float32", cos?.dtype.name ?? "", sin?.dtype.name ?? "");
    }
    const [batch, seq = 0, width = 0] = x.shape;
    if (x.ndim !== 3 || width % headDim !== 0 || cos.ndim !== 2 || 2 * (cos.shape[1] ?? 0) > headDim) {
      throw new ShapeError(
        "rope",
        `x must be [batch, seq, n * ${headDim}] and tables [positions, <= ${headDim / 2}]`,
        x.shape,
        cos.shape,
      );
    }
    if (!sameShape(cos.shape, sin.shape)) {
      throw new ShapeError("rope", "both tables must have one shape", cos.shape, sin.shape);
    }
    if (positions === undefined && seq > (cos.shape[0] ?? 0)) {
      throw new ShapeError("rope", `the tables must reach the sequence length ${seq}`, cos.shape);
    }
    if (
      positions !== undefined &&
      (positions.dtype !== int32 || positions.shape[0] !== batch || positions.shape[1] !== seq)
    ) {
      throw new ShapeError("rope", "positions must be int32 [batch, seq]", positions.shape);
    }
    return [{ shape: x.shape, dtype: x.dtype }];
  },
  forward: (call) => {
    const positions = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
    const [cos, sin] = [call.dense(call.input(1)), call.dense(call.input(2))];
    rotate(call, call.output(0), call.dense(call.input(0)), [cos, sin], positions, call.attrs.headDim, false);
    call.save(cos, sin);
    if (positions !== undefined) call.save(positions);
  },
  backward: (call) => {
    const positions = call.inputs > 3 ? call.saved(2) : undefined;
    const dy = call.dense(call.grad(0));
    rotate(call, call.out(0, dy.dtype), dy, [call.saved(0), call.saved(1)], positions, call.attrs.headDim, true);
  },
};
