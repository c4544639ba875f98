/**
 * Cross-entropy as a sum over tokens, from logits or fused with the output projection.
 *
 * Note [Chunks of logits]: for one chunk of rows at a time, the fused form computes
 * 1. the logits;
 * 2. the losses, and the gradients of the logits in place;
 * 3. from these, the gradients of the hidden states and of the weight.
 *
 * So at most one chunk of logits exists at any time, and the backward only multiplies by the gradient of the loss. Rows whose label is
 * ignored are left out where that is known: see Note [Bits of labeled rows].
 *
 * @module
 */
import { devicePtr } from "../device/device.ts";
import { type DType, float16, float32, int32 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { matrixOf, numelOf, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { castTo } from "./convert.ts";
import { floatPair } from "./check.ts";
import { combineInto } from "./elementwise.ts";
import { chunksOfAll, labeledRows, lookUpRows, selectRows } from "./labeled_rows.ts";
import { flat, product } from "./matmul.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpContext } from "./op.ts";

export interface CrossEntropyAttrs {
  /** Label of rows that do not count. */
  readonly ignoreIndex: number;
  /** The part of a label's weight that all classes share. @default 0 */
  readonly labelSmoothing?: number;
  /** Factor of the squared logarithm of the sum of a row's exponentials, which is added to its loss. @default 0 */
  readonly zLoss?: number;
}

/** An option of the fused form. */
interface BoundedLogits {
  /** Bound c of the logits: a logit becomes c tanh(logit / c). @default none */
  readonly softcap?: number | undefined;
}

/** Options of the fused form. */
export interface LinearCrossEntropyAttrs extends CrossEntropyAttrs, BoundedLogits {}

/** Least number of rows in a chunk: for each chunk the weight is packed, and its gradient read and written. */
const LEAST_ROWS = 256;

function checkLabels(op: string, x: Tensor, labels: Tensor | undefined): void {
  if (labels === undefined || labels.dtype !== int32) {
    throw new DTypeError(
      op,
      "labels must be int32, as tensor() makes with dtype int32",
      labels?.dtype.name ?? "nothing",
    );
  }
  if (numelOf(x.shape.slice(0, -1)) !== labels.numel) {
    throw new ShapeError(op, "there must be one label a row", x.shape, labels.shape);
  }
}

/**
 * Gives input i the gradient `source` of the forward, times the gradient of the loss; it is rounded last if the input is
 * narrower.
 */
function scaleByGrad<A>(call: BackwardCall<A>, i: number, source: Tensor): void {
  const { dtype, numel: n, shape } = source;
  const out = call.out(i, dtype);
  const scaled = out.dtype === dtype ? out : call.empty(shape, dtype);
  call.device.kernels.scaleBy({ dtype, n, dst: scaled.ptr, src: source.ptr, factor: call.grad(0).ptr });
  if (scaled !== out) castTo(out, scaled);
}

/** Gives the hidden states the gradient of those rows that were computed, times the gradient of the loss, and zeros to the others. */
function scaleRowsByGrad<A>(call: BackwardCall<A>, source: Tensor, numbers: Tensor): void {
  const { dtype } = source;
  const out = call.out(0, dtype);
  const all = out.dtype === dtype ? out : call.empty(out.shape, dtype);
  lookUpRows(call, all, source, numbers);
  call.device.kernels.scaleBy({ dtype, n: all.numel, dst: all.ptr, src: all.ptr, factor: call.grad(0).ptr });
  if (all !== out) castTo(out, all);
}

/** Losses of rows with given logits and, if there is memory for it, the gradient of these. */
const rowLosses: RowLosses<CrossEntropyAttrs> = (call, [losses, labels], firstRow, rows, logits, dlogits) => {
  const { ignoreIndex, labelSmoothing = 0, zLoss = 0 } = call.attrs;
  call.device.kernels.crossEntropy({
    ...{ dtype: logits.dtype, rows, cols: matrixOf(logits).cols, firstRow, ignoreIndex, labelSmoothing, zLoss },
    losses: devicePtr(losses.ptr + firstRow * float32.byteLength),
    dlogits: dlogits?.ptr,
    logits: logits.ptr,
    labels: devicePtr(labels.ptr + firstRow * int32.byteLength),
  });
};

function sumLosses<A>(call: ForwardCall<A>, losses: Tensor): void {
  const [dst, src] = [call.output(0).ptr, losses.ptr];
  call.device.kernels.reduce({ op: "sum", dtype: float32, outer: 1, n: losses.numel, inner: 1, dst, src });
}

/** logits [.., classes], labels int32 [..] → the sum of the rows' losses, float32 scalar. */
export const crossEntropyOp: ComputeOp<CrossEntropyAttrs> = {
  name: "crossEntropy",
  infer: ([logits, labels]) => {
    if (logits === undefined || logits.dtype.kind !== "float" || logits.ndim === 0) {
      throw new DTypeError(
        "crossEntropy",
        "logits must be a float with at least one dim",
        logits?.dtype.name ?? "nothing",
      );
    }
    checkLabels("crossEntropy", logits, labels);
    return [{ shape: [], dtype: float32 }];
  },
  forward: (call) => {
    const [given, labels] = [call.dense(call.input(0)), call.dense(call.input(1))];
    // In float16, small gradients would vanish here, before the loss scale is applied.
    const logits = given.dtype === float16 ? inDtype(call, given, float32) : given;
    const losses = call.empty([labels.numel], float32);
    const dlogits = call.needs(0) ? call.empty(logits.shape, logits.dtype) : undefined;
    rowLosses(call, [losses, labels], 0, labels.numel, logits, dlogits);
    sumLosses(call, losses);
    if (dlogits !== undefined) call.save(dlogits);
  },
  backward: (call) => scaleByGrad(call, 0, call.saved(0)),
};

/**
 * Computes losses of rows with given logits, from `firstRow` on, and their gradient in place where it is asked for. Losses, of one dim,
 * and labels are those of all rows that are computed.
 */
export type RowLosses<A> = (
  call: ForwardCall<A>,
  vectors: readonly [losses: Tensor, labels: Tensor],
  firstRow: number,
  rows: number,
  logits: Tensor,
  dlogits: Tensor | undefined,
) => void;

/** Rows of a matrix, from row `start` on. */
export function rowsOf(tensor: Tensor, start: number, rows: number): Tensor {
  const { cols } = matrixOf(tensor);
  return tensor.view({ shape: [rows, cols], strides: [cols, 1], offset: tensor.layout.offset + start * cols });
}

/** Rows of logits that exist at a time. */
export function rowsAtOnce({ device }: Pick<ForwardCall<unknown>, "device">, rows: number, vocab: number): number {
  const { logitsPerChunk } = device.traits;
  return Math.max(1, Math.min(rows, Math.max(LEAST_ROWS, Math.floor(logitsPerChunk / vocab))));
}

/** A tensor in the products' dtype; the tensor itself if it has that dtype. */
export function inDtype(call: OpContext, tensor: Tensor, dtype: DType): Tensor {
  if (tensor.dtype === dtype) return tensor;
  const narrow = call.empty(tensor.shape, dtype);
  castTo(narrow, tensor);
  return narrow;
}

/** Divides float32 logits by the softcap in place, and writes softcap times their tanh. */
export function boundInto(call: OpContext, bounded: Tensor, logits: Tensor, softcap: number): void {
  const { kernels } = call.device;
  const common = { dtype: float32, n: logits.numel };
  kernels.scale({ ...common, factor: 1 / softcap, dst: logits.ptr, src: logits.ptr });
  kernels.unary({ ...common, op: "tanh", p0: 0, p1: 0, dst: bounded.ptr, src: logits.ptr });
  kernels.scale({ ...common, factor: softcap, dst: bounded.ptr, src: bounded.ptr });
}

/** Adds the rows of a float32 matrix to a vector, or overwrites it with their sum. */
export function addRows(call: OpContext, into: Tensor, matrix: Tensor, overwrite: boolean): void {
  const { rows, cols } = matrixOf(matrix);
  const sum = overwrite ? into : call.empty(into.shape, float32);
  call.device.kernels.reduce({
    ...{ op: "sum", dtype: float32, outer: 1, n: rows, inner: cols, dst: sum.ptr, src: matrix.ptr },
  });
  if (sum === into) return;
  call.device.kernels.accumulate({ dstDtype: float32, srcDtype: float32, n: cols, dst: into.ptr, src: sum.ptr });
  sum.dispose();
}

/** Factor of the gradients of logits, which are at most 1: unscaled, float16 rounds the gradients of rare tokens to 0. */
function lossScaleOf(dtype: DType): number {
  return dtype === float16 ? 1024 : 1;
}

/** Gradients of logits in the products' dtype, times {@link lossScaleOf}. */
function scaledDlogits<A>(call: ForwardCall<A>, dlogits: Tensor, dtype: DType): Tensor {
  const { ptr, numel: n } = dlogits;
  const factor = lossScaleOf(dtype);
  if (factor !== 1) call.device.kernels.scale({ dtype: dlogits.dtype, n, factor, dst: ptr, src: ptr });
  return inDtype(call, dlogits, dtype);
}

/** Inputs and options of the losses of `hidden @ weightᵀ + bias`. */
interface LinearLoss<A> {
  /** The op's name. */
  readonly name: string;
  readonly rowLosses: RowLosses<A>;
  /** Columns by which the rows of a chunk are counted. @param vocab rows of the weight */
  columns(attrs: A, vocab: number): number;
  /** Number of ids that a label may have. @param vocab rows of the weight */
  classes(attrs: A, vocab: number): number;
}

/**
 * hidden [.., width], weight [vocab, width], labels int32 [..], optional bias [vocab] → the sum of the losses of `hidden @
 * weightᵀ + bias`, float32 scalar. See Note [Chunks of logits].
 */
export function linearLossOp<A extends LinearCrossEntropyAttrs>(
  { name, rowLosses, columns, classes }: LinearLoss<A>,
): ComputeOp<A> {
  return {
    name,
    infer: (inputs, { softcap }) => {
      if (softcap !== undefined && !(softcap > 0 && Number.isFinite(Math.fround(softcap)))) {
        throw new ArgumentError(`Cannot bound logits by ${softcap}: softcap must be a number above 0`);
      }
      const [hidden, weight] = floatPair(name, inputs, "hidden and weight");
      if (weight.ndim !== 2 || hidden.shape.at(-1) !== weight.shape[1]) {
        throw new ShapeError(name, "the last dim must equal the weight's", hidden.shape, weight.shape);
      }
      checkLabels(name, hidden, inputs[2]);
      const bias = inputs[3];
      if (bias !== undefined && (bias.ndim !== 1 || bias.shape[0] !== weight.shape[0] || bias.dtype !== weight.dtype)) {
        throw new ShapeError(name, `the bias must be [${weight.shape[0]}]`, bias.shape);
      }
      return [{ shape: [], dtype: float32 }];
    },
    forward: (call) => {
      const [hidden, weight, labels] = [
        call.dense(call.input(0)),
        call.dense(call.input(1)),
        call.dense(call.input(2)),
      ];
      const [vocab, width] = twoSizes(name, weight.shape);
      const alpha = 1 / lossScaleOf(hidden.dtype);
      const rows = labels.numel;
      const { kernels } = call.device;
      const { softcap, ignoreIndex } = call.attrs;
      const counted = columns(call.attrs, vocab);
      const perChunk = rowsAtOnce(call, rows, counted);
      const taken = labeledRows(call, hidden, labels, {
        ...{ perChunk, columns: counted, classes: classes(call.attrs, vocab), ignoreIndex },
        matrices: softcap === undefined ? 1 : 2,
      });
      const selected = taken && selectRows(call, hidden, labels, taken);
      const chunks = taken?.chunks ?? chunksOfAll(rows, perChunk);
      const most = chunks.reduce((largest, { rows }) => Math.max(largest, rows), 0);
      const losses = selected?.losses ?? call.empty([rows], float32);
      const allLogits = call.empty([most, vocab], float32);
      const allBounded = softcap === undefined ? undefined : call.empty([most, vocab], float32);
      const gathered = taken && call.empty([most, width], hidden.dtype);
      const dhidden = call.needs(0)
        ? call.empty(taken === undefined ? hidden.shape : [taken.places.length + 1, width], hidden.dtype)
        : undefined;
      const dweight = call.needs(1) ? call.empty(weight.shape, float32) : undefined;
      const bias = call.inputs > 3 ? inDtype(call, call.dense(call.input(3)), float32) : undefined;
      const dbias = bias !== undefined && call.needs(3) ? call.empty([vocab], float32) : undefined;
      if (chunks.length === 0) { // no chunk writes them
        for (const gradient of [dweight, dbias]) {
          if (gradient === undefined) continue;
          kernels.fill({ dtype: float32, n: gradient.numel, value: 0, dst: gradient.ptr });
        }
      }
      for (const [number, { start, rows: m, sums, biasSums }] of chunks.entries()) {
        const products = rowsOf(allLogits, 0, m);
        const chunk = gathered === undefined ? rowsOf(hidden, start, m) : rowsOf(gathered, 0, m);
        selected?.gather(chunk, start);
        product(call, products, flat(chunk, width, false), flat(weight, width, true), m, vocab, width);
        if (bias !== undefined) combineInto(call, "add", products, products, bias);
        const logits = allBounded === undefined ? products : rowsOf(allBounded, 0, m);
        if (softcap !== undefined) boundInto(call, logits, products, softcap);
        rowLosses(call, [losses, selected?.labels ?? labels], start, m, logits, call.recording ? logits : undefined);
        if (softcap !== undefined && call.recording) {
          // The factor on the tanh and the divisor of its input cancel out.
          const pointers = { dx: logits.ptr, dy: logits.ptr, x: products.ptr };
          kernels.unaryBackward({ op: "tanh", dtype: float32, n: logits.numel, p0: 0, p1: 0, ...pointers });
        }
        if (dbias !== undefined) {
          for (const [i, sum] of biasSums.entries()) {
            addRows(call, dbias, rowsOf(logits, sum.start - start, sum.rows), number + i === 0);
          }
        }
        const dlogits = call.recording ? scaledDlogits(call, logits, hidden.dtype) : logits;
        if (dhidden !== undefined) {
          const out = rowsOf(dhidden, start, m);
          product(call, out, flat(dlogits, vocab, false), flat(weight, width, false), m, width, vocab, { alpha });
        }
        if (dweight !== undefined) {
          for (const [i, sum] of sums.entries()) {
            const factors = { alpha, beta: number + i === 0 ? 0 : 1 };
            const left = flat(rowsOf(dlogits, sum.start - start, sum.rows), vocab, true);
            const right = flat(rowsOf(chunk, sum.start - start, sum.rows), width, false);
            product(call, dweight, left, right, vocab, width, sum.rows, factors);
          }
        }
        if (dlogits !== logits) dlogits.dispose();
      }
      sumLosses(call, selected?.lossesOfAll() ?? losses);
      for (const gradient of [dhidden, dweight, dbias]) if (gradient !== undefined) call.save(gradient);
      if (selected === undefined || dhidden === undefined) return;
      selected.endWithZeros(dhidden);
      call.save(selected.numbers);
    },
    backward: (call) => {
      const saved = [0, 1, 3].filter((i) => i < call.inputs && call.needs(i));
      for (const [place, i] of saved.entries()) {
        const source = call.saved(place);
        if (i === 0 && source.numel !== numelOf(call.spec(0).shape)) {
          scaleRowsByGrad(call, source, call.saved(saved.length));
        } else scaleByGrad(call, i, source);
      }
    },
  };
}

/** See {@link linearLossOp}. */
export const linearCrossEntropyOp: ComputeOp<LinearCrossEntropyAttrs> = linearLossOp<LinearCrossEntropyAttrs>({
  name: "linearCrossEntropy",
  rowLosses,
  columns: (_, vocab) => vocab,
  classes: (_, vocab) => vocab,
});
