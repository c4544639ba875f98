/**
 * Rotary position embedding (Su et al. 2021): in the half layout, `rotate_half` of transformers, or of neighbouring pairs.
 *
 * @module
 */
import { float32, int32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { sameShape, threeSizes, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ComputeOp } from "./op.ts";

/** The rotated elements of a head, and their pairs. */
export interface RopeOptions {
  /** First rotated element. @default 0 */
  readonly start?: number;
  /** Pairs elements 2i and 2i + 1, instead of i and i + half the width. @default false */
  readonly interleaved?: boolean;
}

/** {@link RopeOptions} with the size of heads. */
export interface RopeAttrs extends Required<RopeOptions> {
  readonly headDim: number;
}

/** Arguments of both directions. */
function common(x: Tensor, [cos, sin]: readonly [Tensor, Tensor], positions: Tensor | undefined, attrs: RopeAttrs) {
  const { headDim } = attrs;
  const [batch, seq, strideX] = threeSizes("rope", x.shape);
  const [tableRows, half] = twoSizes("rope", cos.shape);
  const sizes = { batch, seq, heads: strideX / headDim, ...attrs, half, tableRows, strideX };
  return { dtype: x.dtype, ...sizes, x: x.ptr, cos: cos.ptr, sin: sin.ptr, positions: positions?.ptr };
}

/**
 * x [batch, seq, heads * headDim], cos and sin float32 [positions, rotaryDim / 2], optional positions int32 [batch, seq] → x
 * rotated.
 */
export const ropeOp: ComputeOp<RopeAttrs> = {
  name: "rope",
  infer: ([x, cos, sin, positions], { headDim, start }) => {
    if (x === undefined || cos === undefined || sin === undefined || cos.dtype !== float32 || sin.dtype !== float32) {
      throw new DTypeError(
        "rope",
        "the tables must be float32",
        cos?.dtype.name ?? "nothing",
        sin?.dtype.name ?? "nothing",
      );
    }
    const expected = `x must be [batch, seq, n * ${headDim}] and tables [positions, <= ${(headDim - start) / 2}]`;
    const [batch, seq, width] = threeSizes("rope", x.shape, expected);
    const [tableRows, half] = twoSizes("rope", cos.shape, expected);
    if (width % headDim !== 0 || start + 2 * half > headDim) throw new ShapeError("rope", expected, x.shape, cos.shape);
    if (!sameShape(cos.shape, sin.shape)) {
      throw new ShapeError("rope", "both tables must have one shape", cos.shape, sin.shape);
    }
    if (positions === undefined && seq > tableRows) {
      throw new ShapeError("rope", `the tables must reach the sequence length ${seq}`, cos.shape);
    }
    const fits = positions === undefined ||
      (positions.dtype === int32 && positions.shape[0] === batch && positions.shape[1] === seq);
    if (!fits) {
      throw new ShapeError("rope", "positions must be int32 [batch, seq]", positions.shape);
    }
    return [{ shape: x.shape, dtype: x.dtype }];
  },
  forward: (call) => {
    const positions = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
    const tables = [call.dense(call.input(1)), call.dense(call.input(2))] as const;
    const args = common(call.dense(call.input(0)), tables, positions, call.attrs);
    call.device.kernels.rope({ ...args, inverse: false, y: call.output(0).ptr });
    call.save(...tables);
    if (positions !== undefined) call.save(positions);
  },
  backward: (call) => {
    const positions = call.inputs > 3 ? call.saved(2) : undefined;
    const dy = call.dense(call.grad(0));
    const args = common(dy, [call.saved(0), call.saved(1)], positions, call.attrs);
    call.device.kernels.rope({ ...args, inverse: true, y: call.out(0, dy.dtype).ptr });
  },
};
