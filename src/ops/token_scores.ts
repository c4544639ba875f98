/**
 * What a language model's head says of each token by itself: its loss, and whether it is the likeliest.
 *
 * Note [Gradients of single tokens]: each token's loss has a gradient of its own, which is known only in the backward. So the forward
 * keeps no logits; the backward computes each chunk of logits again, which costs one more product than `linearCrossEntropy`, and
 * multiplies the gradients of its rows by those of their losses.
 *
 * @module
 */
import { at } from "../at.ts";
import { devicePtr } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { DTypeError } from "../errors.ts";
import { matrixOf, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { combineInto } from "./elementwise.ts";
import { castTo } from "./convert.ts";
import {
  addRows,
  boundInto,
  type CrossEntropyAttrs,
  crossEntropyOp,
  inDtype,
  type LinearCrossEntropyAttrs,
  linearCrossEntropyOp,
  rowsAtOnce,
  rowsOf,
} from "./loss.ts";
import { flat, product } from "./matmul.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpCall } from "./op.ts";

/** Least number of rows of the last of several chunks. */
const LEAST_LAST = 4;

/** Writes the losses and the likeliest numbers of rows of float32 logits; labels and outputs are counted from row `start` on. */
function scoreWholeRows(call: ForwardCall<CrossEntropyAttrs>, logits: Tensor, labels: Tensor, start: number): void {
  const { rows, cols } = matrixOf(logits);
  const { kernels } = call.device;
  const { ignoreIndex } = call.attrs;
  kernels.crossEntropy({
    ...{ dtype: float32, rows, cols, firstRow: start, ignoreIndex, dlogits: undefined, labelSmoothing: 0, zLoss: 0 },
    losses: devicePtr(call.output(0).ptr + start * float32.byteLength),
    logits: logits.ptr,
    labels: devicePtr(labels.ptr + start * int32.byteLength),
  });
  const dst = devicePtr(call.output(1).ptr + start * int32.byteLength);
  kernels.argmax({ dtype: float32, rows, cols, src: logits.ptr, dst });
}

/** logits float32 [.., vocab], labels int32 [..] → for each label its loss and the likeliest number: constants. */
export const logitScoresOp: ComputeOp<CrossEntropyAttrs> = {
  name: "logitScores",
  infer: (inputs, attrs) => {
    crossEntropyOp.infer(inputs, attrs);
    if (inputs[0]?.dtype !== float32) {
      throw new DTypeError("logitScores", "logits must be float32", String(inputs[0]?.dtype.name));
    }
    const { shape } = at(inputs, 1, "labels");
    return [{ shape, dtype: float32 }, { shape, dtype: int32 }];
  },
  forward: (call) => scoreWholeRows(call, call.dense(call.input(0)), call.dense(call.input(1)), 0),
};

/** The inputs of a head, dense. */
interface HeadInputs {
  readonly hidden: Tensor;
  readonly weight: Tensor;
  readonly labels: Tensor;
  readonly bias: Tensor | undefined;
}

/** Logits of some rows, in memory that the next ones overwrite. */
export interface LogitChunk {
  /** The first of the rows. */
  readonly start: number;
  /** Hidden states of the rows. */
  readonly hidden: Tensor;
  /** Float32 [rows, vocab]. */
  readonly logits: Tensor;
  /** With a softcap: the logits before it, divided by it. Without: the logits. */
  readonly products: Tensor;
}

/** All logits, a chunk at a time. @param columns by which the rows of a chunk are counted */
function* logitChunks(
  call: OpCall<LinearCrossEntropyAttrs>,
  { hidden, weight, labels, bias }: HeadInputs,
  columns: number,
): Generator<LogitChunk> {
  const [vocab, width] = twoSizes("tokenScores", weight.shape);
  const rows = labels.numel;
  const perChunk = rowsAtOnce(call, rows, columns);
  const { softcap } = call.attrs;
  const allProducts = call.empty([perChunk, vocab], float32);
  const allBounded = softcap === undefined ? undefined : call.empty([perChunk, vocab], float32);
  const wideBias = bias && inDtype(call, bias, float32);
  for (let start = 0, m = 0; start < rows; start += m) {
    const rest = rows - start;
    // A product of very few rows is summed in another order, so none is left as the last chunk.
    m = rest > perChunk && rest - perChunk < LEAST_LAST ? rest - LEAST_LAST : Math.min(perChunk, rest);
    const [products, chunk] = [rowsOf(allProducts, 0, m), rowsOf(hidden, start, m)];
    product(call, products, flat(chunk, width, false), flat(weight, width, true), m, vocab, width);
    if (wideBias !== undefined) combineInto(call, "add", products, products, wideBias);
    const logits = allBounded === undefined ? products : rowsOf(allBounded, 0, m);
    if (softcap !== undefined) boundInto(call, logits, products, softcap);
    yield { start, hidden: chunk, logits, products };
  }
}

/** Overwrites the logits of whole rows with the gradients of their losses. */
function differentiateWholeRows(
  call: BackwardCall<CrossEntropyAttrs>,
  { start, logits }: LogitChunk,
  labels: Tensor,
): void {
  const { rows, cols } = matrixOf(logits);
  const { ignoreIndex } = call.attrs;
  const losses = call.empty([rows], float32);
  call.device.kernels.crossEntropy({
    ...{ dtype: float32, rows, cols, firstRow: start, ignoreIndex, labelSmoothing: 0, zLoss: 0 },
    ...{ losses: losses.ptr, dlogits: logits.ptr, logits: logits.ptr },
    labels: devicePtr(labels.ptr + start * int32.byteLength),
  });
  losses.dispose();
}

/** Overwrites the logits of a chunk with the gradients of their products: each row's times the gradient of its loss. */
function differentiateRows<A extends LinearCrossEntropyAttrs>(
  call: BackwardCall<A>,
  { differentiate }: RowScores<A>,
  chunk: LogitChunk,
  { labels, gradients, kept }: Readonly<Record<"labels" | "gradients", Tensor>> & { readonly kept: Tensor | undefined },
): void {
  const { start, logits, products } = chunk;
  const { kernels } = call.device;
  differentiate(call, chunk, labels, kept);
  if (call.attrs.softcap !== undefined) {
    // The factor on the tanh and the divisor of its input cancel out.
    const pointers = { dx: logits.ptr, dy: logits.ptr, x: products.ptr };
    kernels.unaryBackward({ op: "tanh", dtype: float32, n: logits.numel, p0: 0, p1: 0, ...pointers });
  }
  combineInto(call, "mul", logits, logits, rowsOf(gradients, start, matrixOf(logits).rows));
}

/** What an op of scores computes of the logits of a chunk of rows. */
interface RowScores<A extends LinearCrossEntropyAttrs> {
  /** The op's name. */
  readonly name: string;
  /** Columns by which the rows of a chunk are counted. @param vocab rows of the weight */
  columns(attrs: A, vocab: number): number;
  /** True if the backward needs a number of each row. */
  readonly keepsRows: boolean;
  /**
   * Writes losses and likeliest numbers, the outputs of the call, whose rows are counted from `start` on as those of the labels are.
   *
   * @param kept room for a number of each row, float32 [rows, 1], if it is needed
   */
  score(call: ForwardCall<A>, logits: Tensor, labels: Tensor, start: number, kept: Tensor | undefined): void;
  /** Overwrites logits with the gradients of their rows' losses. */
  differentiate(call: BackwardCall<A>, chunk: LogitChunk, labels: Tensor, kept: Tensor | undefined): void;
}

/** A float32 tensor for the sum of a gradient over chunks: the gradient's memory, if that is float32. */
function sumOf<A>(call: BackwardCall<A>, i: number): { readonly sum: Tensor; finish(): void } {
  const out = call.out(i, float32);
  const sum = out.dtype === float32 ? out : call.empty(out.shape, float32);
  return { sum, finish: () => sum === out ? undefined : castTo(out, sum) };
}

/** A column of one number for each row of a vector or tensor. */
function columnOf({ numel, layout: { offset } }: Tensor) {
  return { shape: [numel, 1], strides: [1, 1], offset };
}

/**
 * hidden [.., width], weight [vocab, width], labels int32 [..], optional bias [vocab] → of the logits `hidden @ weightᵀ + bias`, for
 * each label, its loss, float32 [..], and the number that has the largest logit, the first among equals, int32 [..]. At most one chunk
 * of logits exists at any time. See Note [Gradients of single tokens].
 */
export function tokenScoresOpOf<A extends LinearCrossEntropyAttrs>(how: RowScores<A>): ComputeOp<A> {
  const { name, keepsRows } = how;
  return {
    name,
    infer: (inputs, attrs) => {
      linearCrossEntropyOp.infer(inputs, attrs);
      const { shape } = at(inputs, 2, "labels");
      return [{ shape, dtype: float32 }, { shape, dtype: int32 }];
    },
    forward: (call) => {
      const [hidden, weight, labels] = [
        call.dense(call.input(0)),
        call.dense(call.input(1)),
        call.dense(call.input(2)),
      ];
      const bias = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
      const kept = keepsRows ? call.empty([labels.numel, 1], float32) : undefined;
      const columns = how.columns(call.attrs, twoSizes(name, weight.shape)[0]);
      for (const { logits, start } of logitChunks(call, { hidden, weight, labels, bias }, columns)) {
        how.score(call, logits, labels, start, kept);
      }
      call.save(hidden, weight, labels, ...[bias, kept].filter((one) => one !== undefined));
    },
    backward: (call) => {
      const [hidden, weight, labels] = [call.saved(0), call.saved(1), call.saved(2)];
      const bias = call.inputs > 3 ? call.saved(3) : undefined;
      const kept = keepsRows ? call.saved(bias === undefined ? 3 : 4) : undefined;
      const [vocab, width] = twoSizes(name, weight.shape);
      const grad = call.dense(call.grad(0));
      const gradients = grad.view(columnOf(grad));
      const dhidden = call.needs(0) ? call.out(0) : undefined;
      const dweight = call.needs(1) ? sumOf(call, 1) : undefined;
      const dbias = bias !== undefined && call.needs(3) ? sumOf(call, 3) : undefined;
      if (labels.numel === 0) { // no chunk writes them
        for (const { sum } of [dweight, dbias].filter((one) => one !== undefined)) {
          call.device.kernels.fill({ dtype: float32, n: sum.numel, value: 0, dst: sum.ptr });
        }
      }
      const columns = how.columns(call.attrs, vocab);
      for (const chunk of logitChunks(call, { hidden, weight, labels, bias }, columns)) {
        const { start, logits } = chunk;
        const { rows: m } = matrixOf(logits);
        differentiateRows(call, how, chunk, { labels, gradients, kept });
        if (dbias !== undefined) addRows(call, dbias.sum, logits, start === 0);
        const dlogits = inDtype(call, logits, hidden.dtype);
        if (dhidden !== undefined) {
          const out = rowsOf(dhidden, start, m);
          product(call, out, flat(dlogits, vocab, false), flat(weight, width, false), m, width, vocab);
        }
        if (dweight !== undefined) {
          const beta = start === 0 ? 0 : 1;
          const [left, right] = [flat(dlogits, vocab, true), flat(chunk.hidden, width, false)];
          product(call, dweight.sum, left, right, vocab, width, m, { beta });
        }
        if (dlogits !== logits) dlogits.dispose();
      }
      dweight?.finish();
      dbias?.finish();
    },
  };
}

/** As {@link tokenScoresOpOf} says; `linearCrossEntropy` is the sum of these losses. */
export const tokenScoresOp: ComputeOp<LinearCrossEntropyAttrs> = tokenScoresOpOf<LinearCrossEntropyAttrs>({
  name: "tokenScores",
  keepsRows: false,
  columns: (_, vocab) => vocab,
  score: scoreWholeRows,
  differentiate: differentiateWholeRows,
});
