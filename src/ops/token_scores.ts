/**
 * What a language model's head says of each token by itself: its loss, and whether it is the likeliest. Constants, for measuring.
 *
 * @module
 */
import { devicePtr } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { DTypeError } from "../errors.ts";
import { matrixOf, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { combineInto } from "./elementwise.ts";
import { castTo } from "./convert.ts";
import {
  boundInto,
  type CrossEntropyAttrs,
  crossEntropyOp,
  type LinearCrossEntropyAttrs,
  linearCrossEntropyOp,
  rowsAtOnce,
  rowsOf,
} from "./loss.ts";
import { flat, product } from "./matmul.ts";
import type { ComputeOp, ForwardCall } from "./op.ts";

/** Least number of rows of the last of several chunks. */
const LEAST_LAST = 4;

/** Writes the losses and the likeliest numbers of rows of float32 logits; labels and outputs are counted from row `start` on. */
function scoreRows(call: ForwardCall<CrossEntropyAttrs>, logits: Tensor, labels: Tensor, start: number): void {
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

/** logits float32 [.., vocab], labels int32 [..] → for each label its loss and the likeliest number, as {@link tokenScoresOp}. */
export const logitScoresOp: ComputeOp<CrossEntropyAttrs> = {
  name: "logitScores",
  infer: (inputs, attrs) => {
    crossEntropyOp.infer(inputs, attrs);
    if (inputs[0]?.dtype !== float32) {
      throw new DTypeError("logitScores", "logits must be float32", String(inputs[0]?.dtype.name));
    }
    const shape = inputs[1]?.shape ?? [];
    return [{ shape, dtype: float32 }, { shape, dtype: int32 }];
  },
  forward: (call) => scoreRows(call, call.dense(call.input(0)), call.dense(call.input(1)), 0),
};

/**
 * hidden [.., width], weight [vocab, width], labels int32 [..], optional bias [vocab] → of the logits `hidden @ weightᵀ + bias`, for
 * each label, its loss, float32 [..], and the number that has the largest logit, the first among equals, int32 [..]. Losses are those
 * that `linearCrossEntropy` adds up, and at most one chunk of logits exists at any time.
 */
export const tokenScoresOp: ComputeOp<LinearCrossEntropyAttrs> = {
  name: "tokenScores",
  infer: (inputs, attrs) => {
    linearCrossEntropyOp.infer(inputs, attrs);
    const shape = inputs[2]?.shape ?? [];
    return [{ shape, dtype: float32 }, { shape, dtype: int32 }];
  },
  forward: (call) => {
    const [hidden, weight, labels] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
    const [vocab, width] = twoSizes("tokenScores", weight.shape);
    const rows = labels.numel;
    const perChunk = rowsAtOnce(call, rows, vocab);
    const allLogits = call.empty([perChunk, vocab], float32);
    const { softcap } = call.attrs;
    const allBounded = softcap === undefined ? undefined : call.empty([perChunk, vocab], float32);
    const given = call.inputs > 3 ? call.dense(call.input(3)) : undefined;
    const bias = given === undefined || given.dtype === float32 ? given : call.empty(given.shape, float32);
    if (given !== undefined && bias !== undefined && bias !== given) castTo(bias, given);
    for (let start = 0, m = 0; start < rows; start += m) {
      const rest = rows - start;
      // A product of very few rows is summed in another order, so none is left as the last chunk.
      m = rest > perChunk && rest - perChunk < LEAST_LAST ? rest - LEAST_LAST : Math.min(perChunk, rest);
      const [products, chunk] = [rowsOf(allLogits, 0, m), rowsOf(hidden, start, m)];
      product(call, products, flat(chunk, width, false), flat(weight, width, true), m, vocab, width);
      if (bias !== undefined) combineInto(call, "add", products, products, bias);
      const logits = allBounded === undefined ? products : rowsOf(allBounded, 0, m);
      if (softcap !== undefined) boundInto(call, logits, products, softcap);
      scoreRows(call, logits, labels, start);
    }
  },
};
