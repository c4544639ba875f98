/**
 * Scaled dot-product attention in the flash manner (Dao et al. 2022): memory linear in the sequence, probabilities
 * recomputed in the backward from the saved log-sum-exp.
 *
 * @module
 */
import { KERNELS } from "../device/kernels/table.ts";
import { float32, uint8 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { sameShape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ComputeOp } from "./op.ts";

const MAX_HEAD_DIM = KERNELS.attention.values.headDim.atMost;

/** Heads and switches of an attention. */
export interface AttentionAttrs {
  /** Heads of the queries. */
  readonly heads: number;
  /** A divisor of `heads` (grouped-query attention). */
  readonly kvHeads: number;
  /** Whether a query sees only keys up to its own position. */
  readonly causal: boolean;
  /** Factor on q·k; usually 1 / √headDim. */
  readonly scale: number;
  /** Keys that a query of a causal attention sees: its own and those right before. @default all */
  readonly window?: number | undefined;
}

/** The arguments that both directions share. */
function common([q, k, v]: readonly [Tensor, Tensor, Tensor], keyMask: Tensor | undefined, attrs: AttentionAttrs) {
  const [batch = 1, seqQ = 1, strideQ = 1] = q.shape;
  const [, seqK = 1, strideK = 1] = k.shape;
  const [, , strideV = 1] = v.shape;
  // To the kernel, a window of 0 is none.
  const window = attrs.window ?? 0;
  const dims = { headDim: strideQ / attrs.heads, valueDim: strideV / attrs.kvHeads };
  const maskRows = keyMask?.ndim === 3 ? seqQ : 1;
  const sizes = { batch, seqQ, seqK, ...dims, strideQ, strideK, strideV, window, maskRows };
  return { dtype: q.dtype, ...attrs, ...sizes, q: q.ptr, k: k.ptr, v: v.ptr, keyMask: keyMask?.ptr };
}

/**
 * q [batch, seqQ, heads * d], k [batch, seqK, kvHeads * d], v [batch, seqK, kvHeads * dV], optional key mask uint8 [batch, seqK] or
 * [batch, seqQ, seqK] (0 hides) → [batch, seqQ, heads * dV].
 */
export const attentionOp: ComputeOp<AttentionAttrs> = {
  name: "attention",
  infer: ([q, k, v, mask], { heads, kvHeads, causal, window }) => {
    if (window !== undefined && !(causal && Number.isSafeInteger(window) && window > 0)) {
      throw new ArgumentError(
        `Cannot attend within a window of ${window}: it must be 1 key or more, of a causal attention`,
      );
    }
    if (q === undefined || k === undefined || v === undefined || q.dtype !== k.dtype || q.dtype !== v.dtype) {
      throw new DTypeError("attention", "q, k and v must have one dtype", q?.dtype.name ?? "", k?.dtype.name ?? "");
    }
    const [[batch = 0, seqQ = 0], [, seqK = 0]] = [q.shape, k.shape];
    const [headDim, valueDim] = [(q.shape[2] ?? 0) / heads, (v.shape[2] ?? 0) / kvHeads];
    const fits = q.ndim === 3 && k.ndim === 3 && v.ndim === 3 && Number.isInteger(headDim) && heads % kvHeads === 0 &&
      k.shape[0] === q.shape[0] && k.shape[2] === kvHeads * headDim &&
      Number.isInteger(valueDim) && v.shape[0] === k.shape[0] && v.shape[1] === k.shape[1];
    if (!fits) {
      throw new ShapeError("attention", `${heads} query and ${kvHeads} kv heads must fit`, q.shape, k.shape, v.shape);
    }
    if (Math.max(headDim, valueDim) > MAX_HEAD_DIM) {
      throw new ShapeError("attention", `a head must have at most ${MAX_HEAD_DIM} elements`, q.shape, v.shape);
    }
    const maskShape = mask?.ndim === 3 ? [batch, seqQ, seqK] : [batch, seqK];
    if (mask !== undefined && (mask.dtype !== uint8 || !sameShape(mask.shape, maskShape))) {
      throw new ShapeError(
        "attention",
        "the key mask must be uint8 [batch, seqK] or [batch, seqQ, seqK]",
        mask.shape,
        k.shape,
      );
    }
    return [{ shape: q.shape.with(2, heads * valueDim), dtype: q.dtype }];
  },
  forward: (call) => {
    const inputs = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))] as const;
    const mask = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
    const args = common(inputs, mask, call.attrs);
    const [o, lse] = [call.output(0), call.empty([args.batch, args.heads, args.seqQ], float32)];
    call.device.kernels.attention({ ...args, o: o.ptr, lse: lse.ptr });
    call.save(...inputs, o, lse);
    if (mask !== undefined) call.save(mask);
  },
  backward: (call) => {
    const inputs = [call.saved(0), call.saved(1), call.saved(2)] as const;
    const [o, lse, dO] = [call.saved(3), call.saved(4), call.dense(call.grad(0))];
    const out = ({ shape, dtype }: Tensor, i: number): Tensor =>
      call.needs(i) ? call.out(i, dtype) : call.empty(shape, dtype);
    const [dq, dk, dv] = [out(inputs[0], 0), out(inputs[1], 1), out(inputs[2], 2)];
    call.device.kernels.attentionBackward({
      ...common(inputs, call.inputs > 3 ? call.saved(5) : undefined, call.attrs),
      dq: dq.ptr,
      dk: dk.ptr,
      dv: dv.ptr,
      dO: dO.ptr,
      o: o.ptr,
      lse: lse.ptr,
    });
  },
};
