/**
 * Functions of tensors that have no parameters of their own.
 *
 * @module
 */
import { requireWord } from "../config/known_values.ts";
import { ArgumentError, InternalError, ShapeError } from "../errors.ts";
import { type AttentionAttrs, attentionOp } from "../ops/attention.ts";
import { causalConvOp } from "../ops/conv.ts";
import { requireList, requireTensor } from "../ops/check.ts";
import { swigluOp } from "../ops/elementwise.ts";
import { type GatedDeltaAttrs, gatedDeltaOp } from "../ops/gated_delta.ts";
import { catOp } from "../ops/join.ts";
import { crossEntropyOp, linearCrossEntropyOp } from "../ops/loss.ts";
import { whereOp } from "../ops/mask.ts";
import { ropeOp, type RopeOptions } from "../ops/rope.ts";
import { logitScoresOp, tokenScoresOp } from "../ops/token_scores.ts";
import { normalizeDim, sameShape } from "../shape.ts";
import { apply, applyOne } from "../tensor/apply.ts";
import { scalar } from "../tensor/host.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";

/**
 * Tensors one behind the other along a dim. They have one dtype, and one shape but for that dim.
 *
 * @throws {ShapeError | DTypeError} if they have not
 * @throws {ArgumentError} if there is none
 * @example
 * ```ts
 * import { tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { cat } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * const joined = cat([tensor(device, [1, 2]), tensor(device, [3])]);
 * if (joined.toArray().join() !== "1,2,3") throw new Error("unequal");
 * ```
 */
export function cat(tensors: readonly Tensor[], dim: number = 0): Tensor {
  return applyOne(catOp, tensors, normalizeDim("cat", dim, firstOf("cat", tensors).shape));
}

/**
 * Tensors of one shape and dtype along a new dim.
 *
 * @throws {ShapeError | DTypeError} if they differ
 * @throws {ArgumentError} if there is none
 * @example
 * ```ts
 * import { tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { stack } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * const columns = stack([tensor(device, [1, 2]), tensor(device, [3, 4])], 1);
 * if (columns.toArray().join() !== "1,3,2,4") throw new Error("unequal");
 * ```
 */
export function stack(tensors: readonly Tensor[], dim: number = 0): Tensor {
  const { shape } = firstOf("stack", tensors);
  const place = normalizeDim("stack", dim, [...shape, 1]);
  for (const other of tensors) {
    if (!sameShape(shape, other.shape)) throw new ShapeError("stack", "shapes must be equal", shape, other.shape);
  }
  using frame = scope();
  const stacked = cat(tensors.map((tensor) => tensor.unsqueeze(place)), place);
  frame.keep(stacked);
  return stacked;
}

function firstOf(op: string, tensors: readonly Tensor[]): Tensor {
  requireList(op, tensors, "a list of tensors");
  for (const given of tensors) requireTensor(op, given);
  const [first] = tensors;
  if (first === undefined) throw new ArgumentError(`Cannot apply '${op}' to no tensors: give at least one`);
  return first;
}

/**
 * `a` where the uint8 condition is not 0, else `b`; all three broadcast. One of the two may be a number.
 *
 * @throws {ShapeError | DTypeError} if they do not broadcast, or differ in dtype
 * @throws {ArgumentError} if both are numbers, or their dtype does not hold the number
 * @example
 * ```ts
 * import { tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { where } from "fullyshard/nn";
 * const x = tensor(await openDevice("cpu"), [-1, 2, -3]);
 * if (where(x.gt(0), x, x.mul(0.5)).toArray().join() !== "-0.5,2,-1.5") throw new Error("unequal");
 * ```
 */
export function where(condition: Tensor, a: Tensor | number, b: Tensor | number): Tensor {
  using frame = scope();
  const like = typeof a === "number" ? b : a;
  if (typeof like === "number") {
    throw new ArgumentError("Cannot apply 'where' to two numbers: make one of them a tensor, which says the dtype");
  }
  for (const given of [a, b]) if (typeof given !== "number") requireTensor("where", given, "a tensor or a number");
  const made = (value: Tensor | number): Tensor => typeof value === "number" ? scalar(like, value, "where") : value;
  const chosen = applyOne(whereOp, [condition, made(a), made(b)], undefined);
  frame.keep(chosen);
  return chosen;
}

/** Reduction of the elements' losses: their mean, their sum, or none. */
export type Reduction = "mean" | "sum" | "none";

function lossOf(
  op: string,
  input: Tensor,
  target: Tensor,
  reduction: Reduction,
  losses: (input: Tensor, target: Tensor) => Tensor,
): Tensor {
  for (const given of [input, target]) requireTensor(op, given);
  requireWord(`apply '${op}'`, "reduction", reduction, ["mean", "sum", "none"]);
  if (!sameShape(input.shape, target.shape)) {
    throw new ShapeError(op, "input and target must have one shape", input.shape, target.shape);
  }
  using frame = scope();
  const each = losses(input, target);
  const loss = reduction === "none" ? each : reduction === "sum" ? each.sum() : each.mean();
  frame.keep(loss);
  return loss;
}

/**
 * Squared error of each element, reduced.
 *
 * @throws {ShapeError} if the shapes differ: nothing is broadcast
 * @example
 * ```ts
 * import { tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { mseLoss } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * if (mseLoss(tensor(device, [1, 2]), tensor(device, [1, 4])).item() !== 2) throw new Error("unequal");
 * ```
 */
export function mseLoss(input: Tensor, target: Tensor, reduction: Reduction = "mean"): Tensor {
  return lossOf("mseLoss", input, target, reduction, (x, y) => x.sub(y).square());
}

/**
 * Absolute error of each element, reduced.
 *
 * @throws {ShapeError} if the shapes differ: nothing is broadcast
 */
export function l1Loss(input: Tensor, target: Tensor, reduction: Reduction = "mean"): Tensor {
  return lossOf("l1Loss", input, target, reduction, (x, y) => x.sub(y).abs());
}

/**
 * Binary cross-entropy of logits with targets in [0, 1], reduced.
 *
 * @throws {ShapeError} if the shapes differ: nothing is broadcast
 */
export function binaryCrossEntropyWithLogits(input: Tensor, target: Tensor, reduction: Reduction = "mean"): Tensor {
  // -ln sigmoid(x) is softplus(-x), and -ln(1 - sigmoid(x)) is x more.
  return lossOf("binaryCrossEntropyWithLogits", input, target, reduction, (x, y) => {
    return y.neg().add(1).mul(x).add(x.neg().softplus());
  });
}

/** Default label of tokens that the loss leaves out: PyTorch's number. */
export const IGNORE_INDEX: -100 = -100;

/**
 * Attention of q [batch, seqQ, heads * d] to k [batch, seqK, kvHeads * d] and v [batch, seqK, kvHeads * dV].
 *
 * @param keyMask optional uint8 [batch, seqK], or [batch, seqQ, seqK] for each query its own; 0 hides a key
 * @param sinks optional [heads]: the score of one more key, which all queries see and whose value is zero
 * @param documentStarts optional int32 [batch, seqQ]: for each query the first key that it may see. It never falls along a sequence,
 * so that documents one behind the other see themselves alone, and keys of others are not even read
 * @returns [batch, seqQ, heads * dV]
 */
export function attention(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  attrs: Omit<AttentionAttrs, "sinks" | "documents">,
  keyMask?: Tensor,
  sinks?: Tensor,
  documentStarts?: Tensor,
): Tensor {
  const inputs = [q, k, v, keyMask, documentStarts, sinks].filter((input) => input !== undefined);
  const documents = documentStarts !== undefined;
  return applyOne(attentionOp, inputs, { ...attrs, documents, sinks: sinks !== undefined });
}

/** A function that computes {@link attention}. */
export type AttentionFunction = typeof attention;

/**
 * Rotates the heads of x [batch, seq, n * headDim] by the tables' angles. Without `positions` they are 0, 1, …
 *
 * @param options the rotated elements of a head, and their pairs; by default from element 0 on, the first half with the second
 */
export function rope(
  x: Tensor,
  cos: Tensor,
  sin: Tensor,
  headDim: number,
  positions?: Tensor,
  options: RopeOptions = {},
): Tensor {
  const { start = 0, interleaved = false } = options;
  const inputs = positions === undefined ? [x, cos, sin] : [x, cos, sin, positions];
  return applyOne(ropeOp, inputs, { headDim, start, interleaved });
}

/**
 * Each channel's sum of its own and its `width - 1` earlier values by its weights: x [batch, seq, channels], weight
 * [channels, 1, width] as in PyTorch's depthwise `Conv1d`. With `documentStarts`, int32 [batch, seq], which gives for each
 * token the place in its sequence of its document's first one, values of earlier documents count as zeros.
 */
export function causalConv(x: Tensor, weight: Tensor, documentStarts?: Tensor): Tensor {
  return applyOne(causalConvOp, [x, weight, documentStarts].filter((input) => input !== undefined), undefined);
}

/**
 * The gated delta rule: each value head has a state [keyDim, valueDim], which fades by `e^g` with each token, then learns that the
 * token's key has its value, to the share `beta`, and is read with its query.
 *
 * @param q [batch, seq, keyHeads * keyDim], and so is `k`, whose heads have length 1 in most models
 * @param v [batch, seq, valueHeads * valueDim]
 * @param g float32 [batch, seq, valueHeads], at most 0
 * @param beta [batch, seq, valueHeads], from 0 to 1
 * @param documentStarts optional int32 [batch, seq]: for each token the place in its sequence of its document's first one, at which
 * the state becomes zeros
 * @returns what is read, [batch, seq, valueHeads * valueDim]
 * @throws {ShapeError | DTypeError} if they do not fit
 * @example
 * ```ts
 * import { tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { gatedDeltaRule } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * const of = (values: number[]) => tensor(device, values, { shape: [1, 2, 1] });
 * const [key, value] = [of([1, 1]), of([6, 2])];
 * const read = gatedDeltaRule(key, key, value, of([0, 0]), of([1, 0.5]), { keyHeads: 1, valueHeads: 1, scale: 1 });
 * if (read.toArray().join() !== "6,4") throw new Error("unequal");
 * ```
 */
export function gatedDeltaRule(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  g: Tensor,
  beta: Tensor,
  attrs: GatedDeltaAttrs,
  documentStarts?: Tensor,
): Tensor {
  return applyOne(gatedDeltaOp, [q, k, v, g, beta, documentStarts].filter((input) => input !== undefined), attrs);
}

/** `silu(gate) * up` */
export function swiglu(gate: Tensor, up: Tensor): Tensor {
  return applyOne(swigluOp, [gate, up], undefined);
}

/** Terms of a cross-entropy besides the label's. */
export interface LossTerms {
  /** The part of a label's weight, from 0 to 1, that all classes share (PyTorch's `label_smoothing`). @default 0 */
  readonly labelSmoothing?: number | undefined;
  /** Factor of the squared logarithm of the sum of a row's exponentials, which is added to the row's loss. @default 0 */
  readonly zLoss?: number | undefined;
}

/** @throws {ArgumentError} if a term is out of range */
function termsOf(
  op: string,
  { labelSmoothing = 0, zLoss = 0 }: LossTerms,
): { readonly labelSmoothing: number; readonly zLoss: number } {
  if (labelSmoothing >= 0 && labelSmoothing <= 1 && zLoss >= 0 && zLoss < Infinity) return { labelSmoothing, zLoss };
  throw new ArgumentError(
    `Cannot apply '${op}' with labelSmoothing ${labelSmoothing} and zLoss ${zLoss}: expected a part from 0 to 1 and a factor from 0`,
  );
}

/**
 * Sum over rows of the cross-entropy of logits [.., classes] with int32 labels [..]; a float32 scalar.
 *
 * @throws {ArgumentError} if a term is out of range
 * @example
 * ```ts
 * import { int32, tensor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { crossEntropy } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * const [logits, labels] = [tensor(device, [0, 0], { shape: [1, 2] }), tensor(device, [1], { dtype: int32 })];
 * const loss = crossEntropy(logits, labels, -100, { labelSmoothing: 0.1 }).item();
 * if (Math.abs(loss - Math.log(2)) > 1e-6) throw new Error(`${loss}`);
 * ```
 */
export function crossEntropy(
  logits: Tensor,
  labels: Tensor,
  ignoreIndex: number = IGNORE_INDEX,
  terms: LossTerms = {},
): Tensor {
  return applyOne(crossEntropyOp, [logits, labels], { ignoreIndex, ...termsOf("crossEntropy", terms) });
}

/**
 * {@link crossEntropy} of `hidden @ weightᵀ + bias` without ever holding all logits. With `softcap` c, each logit becomes
 * `c tanh(logit / c)` first.
 */
export function linearCrossEntropy(
  hidden: Tensor,
  weight: Tensor,
  labels: Tensor,
  options: LossTerms & {
    readonly bias?: Tensor | undefined;
    readonly ignoreIndex?: number;
    readonly softcap?: number | undefined;
  } = {},
): Tensor {
  const { bias, ignoreIndex = IGNORE_INDEX, softcap } = options;
  const inputs = bias === undefined ? [hidden, weight, labels] : [hidden, weight, labels, bias];
  return applyOne(linearCrossEntropyOp, inputs, { ignoreIndex, softcap, ...termsOf("linearCrossEntropy", options) });
}

/** Scores of single tokens. Made by {@link tokenScores}. */
export interface TokenScores {
  /** Cross-entropy of each token, in nats: float32 [..], 0 where the label counts for nothing. It has gradients. */
  readonly losses: Tensor;
  /** The id with the largest logit at each position, the first among equals: int32 [..], constants. */
  readonly likeliest: Tensor;
}

/**
 * The loss of each token of `hidden @ weightᵀ + bias`, by `softcap` as in {@link linearCrossEntropy}, and the likeliest id at its
 * position. At most one chunk of logits exists at any time: a backward computes them again, as it first knows the gradient of each
 * token's loss. In float16, that gradient is to be scaled (`GradScaler`).
 *
 * @param hidden [.., width]
 * @param weight [vocab, width]
 * @param labels int32 [..]; `ignoreIndex`, -100 by default, counts for nothing
 * @throws {ShapeError | DTypeError} if they do not fit each other
 */
export function tokenScores(
  hidden: Tensor,
  weight: Tensor,
  labels: Tensor,
  options: {
    readonly bias?: Tensor | undefined;
    readonly ignoreIndex?: number;
    readonly softcap?: number | undefined;
  } = {},
): TokenScores {
  const { bias, ignoreIndex = IGNORE_INDEX, softcap } = options;
  const inputs = bias === undefined ? [hidden, weight, labels] : [hidden, weight, labels, bias];
  const [losses, likeliest] = apply(tokenScoresOp, inputs, { ignoreIndex, softcap });
  if (losses === undefined || likeliest === undefined) throw new InternalError("tokenScores gave no outputs");
  return { losses, likeliest };
}

/**
 * The loss of each token of given logits, and the likeliest id at its position, as {@link tokenScores}; constants, without gradients.
 *
 * @param logits float32 [.., vocab]
 * @param labels int32 [..]
 * @param ignoreIndex The label that counts for nothing. @default -100
 * @throws {ShapeError | DTypeError} if they do not fit each other
 */
export function scoresOfLogits(logits: Tensor, labels: Tensor, ignoreIndex: number = IGNORE_INDEX): TokenScores {
  const [losses, likeliest] = apply(logitScoresOp, [logits, labels], { ignoreIndex });
  if (losses === undefined || likeliest === undefined) throw new InternalError("logitScores gave no outputs");
  return { losses, likeliest };
}
