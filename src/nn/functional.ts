/**
 * Functions of tensors that have no parameters of their own.
 *
 * @module
 */
import { type AttentionAttrs, attentionOp } from "../ops/attention.ts";
import { swigluOp } from "../ops/elementwise.ts";
import { crossEntropyOp, linearCrossEntropyOp } from "../ops/loss.ts";
import { ropeOp } from "../ops/rope.ts";
import { applyOne } from "../tensor/apply.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Default label of tokens that the loss leaves out: PyTorch's number. */
export const IGNORE_INDEX: -100 = -100;

/**
 * Attention of q [batch, seqQ, heads * d] to k, v [batch, seqK, kvHeads * d].
 *
 * @param keyMask optional uint8 [batch, seqK]; 0 hides a key
 * @returns [batch, seqQ, heads * d]
 */
export function attention(q: Tensor, k: Tensor, v: Tensor, attrs: AttentionAttrs, keyMask?: Tensor): Tensor {
  return applyOne(attentionOp, keyMask === undefined ? [q, k, v] : [q, k, v, keyMask], attrs);
}

/** Turns the heads of x [batch, seq, n * headDim] by the tables' angles; positions are 0, 1, … unless given. */
export function rope(x: Tensor, cos: Tensor, sin: Tensor, headDim: number, positions?: Tensor): Tensor {
  return applyOne(ropeOp, positions === undefined ? [x, cos, sin] : [x, cos, sin, positions], headDim);
}

/** `silu(gate) * up` */
export function swiglu(gate: Tensor, up: Tensor): Tensor {
  return applyOne(swigluOp, [gate, up], undefined);
}

/** Sum over rows of the cross-entropy of logits [.., classes] with int32 labels [..]; a float32 scalar. */
export function crossEntropy(logits: Tensor, labels: Tensor, ignoreIndex: number = IGNORE_INDEX): Tensor {
  return applyOne(crossEntropyOp, [logits, labels], { ignoreIndex });
}

/** {@link crossEntropy} of `hidden @ weightᵀ` without ever holding all logits. */
export function linearCrossEntropy(
  hidden: Tensor,
  weight: Tensor,
  labels: Tensor,
  ignoreIndex: number = IGNORE_INDEX,
): Tensor {
  return applyOne(linearCrossEntropyOp, [hidden, weight, labels], { ignoreIndex });
}
