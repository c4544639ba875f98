/**
 * Scaled dot-product attention in the flash manner (Dao et al. 2022): memory linear in the sequence, probabilities
 * recomputed in the backward from the saved log-sum-exp.
 *
 * @module
 */
import type { AttentionShape } from "../device/kernels.ts";
import { type DevicePtr, NO_PTR } from "../device/device.ts";
import { float32, uint8 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ComputeOp } from "./op.ts";

/** Heads and switches of an attention. */
export interface AttentionAttrs {
  readonly heads: number;
  /** A divisor of `heads` (grouped-query attention). */
  readonly kvHeads: number;
  /** Whether a query sees only keys up to its own position. */
  readonly causal: boolean;
  /** Factor on q·k; usually 1 / √headDim. */
  readonly scale: number;
}

function shapeOf(q: Tensor, k: Tensor, v: Tensor, keyMask: DevicePtr, attrs: AttentionAttrs): AttentionShape {
  const [batch = 1, seqQ = 1, width = 1] = q.shape;
  return {
    dtype: q.dtype,
    batch,
    seqQ,
    seqK: k.shape[1] ?? 1,
    heads: attrs.heads,
    kvHeads: attrs.kvHeads,
    headDim: width / attrs.heads,
    strideQ: width,
    strideK: k.shape[2] ?? 1,
    strideV: v.shape[2] ?? 1,
    scale: attrs.scale,
    causal: attrs.causal,
    keyMask,
  };
}

/** q [batch, seqQ, heads * d], k and v [batch, seqK, kvHeads * d], optional key mask uint8 [batch, seqK] (0 hides). */
export const attentionOp: ComputeOp<AttentionAttrs> = {
  name: "attention",
  infer: ([q, k, v, mask], { heads, kvHeads }) => {
    if (q === undefined || k === undefined || v === undefined || q.dtype !== k.dtype || q.dtype !== v.dtype) {
      throw new DTypeError("attention", "q, k and v must have one dtype", q?.dtype.name ?? "", k?.dtype.name ?? "");
    }
    const headDim = (q.shape[2] ?? 0) / heads;
    const fits = q.ndim === 3 && k.ndim === 3 && v.ndim === 3 && Number.isInteger(headDim) && heads % kvHeads === 0 &&
      k.shape[0] === q.shape[0] && k.shape[2] === kvHeads * headDim &&
      v.shape.every((size, dim) => size === k.shape[dim]);
    if (!fits) {
      throw new ShapeError("attention", `${heads} query and ${kvHeads} kv heads must fit`, q.shape, k.shape, v.shape);
    }
    if (headDim > 256) throw new ShapeError("attention", "a head must have at most 256 elements", q.shape);
    if (mask !== undefined && (mask.dtype !== uint8 || mask.shape[0] !== k.shape[0] || mask.shape[1] !== k.shape[1])) {
      throw new ShapeError("attention", "the key mask must be uint8 [batch, seqK]", mask.shape, k.shape);
    }
    return [{ shape: q.shape, dtype: q.dtype }];
  },
  forward: (call) => {
    const [q, k, v] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
    const mask = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
    const shape = shapeOf(q, k, v, mask?.ptr ?? NO_PTR, call.attrs);
    const lse = call.empty([shape.batch, shape.heads, shape.seqQ], float32);
    call.device.kernels.attention(shape, call.output(0).ptr, lse.ptr, q.ptr, k.ptr, v.ptr);
    call.save(q, k, v, call.output(0), lse);
    if (mask !== undefined) call.save(mask);
  },
  backward: (call) => {
    const [q, k, v, o, lse] = [call.saved(0), call.saved(1), call.saved(2), call.saved(3), call.saved(4)];
    const shape = shapeOf(q, k, v, call.inputs > 3 ? call.saved(5).ptr : NO_PTR, call.attrs);
    const dO = call.dense(call.grad(0));
    const out = (i: number, like: Tensor): Tensor =>
      call.needs(i) ? call.out(i, like.dtype) : call.empty(like.shape, like.dtype);
    const [dq, dk, dv] = [out(0, q), out(1, k), out(2, v)];
    call.device.kernels.attentionBackward(shape, dq.ptr, dk.ptr, dv.ptr, dO.ptr, o.ptr, lse.ptr, q.ptr, k.ptr, v.ptr);
  },
};
