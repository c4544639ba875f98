/**
 * Cross-entropy as a sum over tokens, from logits or fused with the output projection.
 *
 * Note [Chunks of logits]: the fused form computes, for some rows at a time, logits, losses, their gradient in place, and
 * from it the gradients of the hidden states and of the weight. So no more than one chunk of logits exists at any time,
 * and the backward only multiplies by the gradient of the loss.
 *
 * @module
 */
import { devicePtr, NO_PTR } from "../device/device.ts";
import { type DType, float32, int32 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { numelOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { BackwardCall, ComputeOp, ForwardCall } from "./op.ts";

/** Options of a cross-entropy. */
export interface CrossEntropyAttrs {
  /** Rows with this label count for nothing. */
  readonly ignoreIndex: number;
}

/** Logits held at a time by the fused form, in elements. */
export const LOGITS_CHUNK_ELEMENTS: number = 1 << 20;

function checkLabels(op: string, x: Tensor, labels: Tensor | undefined): void {
  if (labels === undefined || labels.dtype !== int32) {
    throw new DTypeError(op, "labels must be int32", labels?.dtype.name ?? "");
  }
  if (numelOf(x.shape.slice(0, -1)) !== labels.numel) {
    throw new ShapeError(op, "there must be one label a row", x.shape, labels.shape);
  }
}

function refuseLabel(labels: Tensor, row: number, classes: number): void {
  if (row >= 0) {
    throw new ArgumentError(
      `Cannot take the cross-entropy of label ${labels.toArray()[row]} at row ${row}: there are ${classes} classes`,
    );
  }
}

function scaleByGrad<A>(call: BackwardCall<A>, i: number, source: Tensor): void {
  const { kernels } = call.device;
  const out = call.out(i, source.dtype);
  const grad = call.grad(0);
  if (out.dtype === source.dtype) return kernels.scaleBy(source.dtype, out.ptr, source.ptr, source.numel, grad.ptr);
  const scaled = call.empty(source.shape, source.dtype);
  kernels.scaleBy(source.dtype, scaled.ptr, source.ptr, source.numel, grad.ptr);
  kernels.cast(out.dtype, source.dtype, out.ptr, scaled.ptr, source.numel);
}

/** logits [.., classes], labels int32 [..] → the sum of the rows' losses, float32 scalar. */
export const crossEntropyOp: ComputeOp<CrossEntropyAttrs> = {
  name: "crossEntropy",
  infer: ([logits, labels]) => {
    if (logits === undefined || logits.dtype.kind !== "float" || logits.ndim === 0) {
      throw new DTypeError("crossEntropy", "logits must be a float with at least one dim", logits?.dtype.name ?? "");
    }
    checkLabels("crossEntropy", logits, labels);
    return [{ shape: [], dtype: float32 }];
  },
  forward: (call) => {
    const [logits, labels] = [call.dense(call.input(0)), call.dense(call.input(1))];
    const cols = logits.shape.at(-1) ?? 1;
    const rows = labels.numel;
    const { kernels } = call.device;
    const losses = call.empty([rows], float32);
    const dlogits = call.needs(0) ? call.empty(logits.shape, logits.dtype) : undefined;
    const bad = kernels.crossEntropy(
      logits.dtype,
      losses.ptr,
      dlogits?.ptr ?? NO_PTR,
      logits.ptr,
      labels.ptr,
      rows,
      cols,
      call.attrs.ignoreIndex,
      1,
    );
    refuseLabel(labels, bad, cols);
    kernels.reduce("sum", float32, call.output(0).ptr, losses.ptr, 1, rows, 1);
    if (dlogits !== undefined) call.save(dlogits);
  },
  backward: (call) => scaleByGrad(call, 0, call.saved(0)),
};

/** What one chunk of the fused form works on. */
interface Chunk {
  readonly hidden: Tensor;
  readonly weight: Tensor;
  readonly start: number;
  readonly rows: number;
}

/** One product of the chunk's logits (or their gradient) with something. */
function chunkProduct(
  call: ForwardCall<CrossEntropyAttrs>,
  kind: "logits" | "dhidden" | "dweight",
  { hidden, weight, start, rows }: Chunk,
  logits: Tensor,
  out: Tensor,
): void {
  const [vocab = 0, width = 0] = weight.shape;
  const hiddenAt = (tensor: Tensor): number => tensor.ptr + start * width * tensor.dtype.byteLength;
  const common = { dtype: hidden.dtype, outDtype: out.dtype, alpha: 1, strideA: 0, strideB: 0, strideC: 0, batch: 1 };
  const { kernels } = call.device;
  if (kind === "logits") {
    const a = devicePtr(hiddenAt(hidden));
    const places = { a, lda: width, b: weight.ptr, ldb: width, c: out.ptr, ldc: vocab };
    kernels.gemm({ ...common, ...places, transA: false, transB: true, m: rows, n: vocab, k: width, beta: 0 });
  } else if (kind === "dhidden") {
    const c = devicePtr(hiddenAt(out));
    const places = { a: logits.ptr, lda: vocab, b: weight.ptr, ldb: width, c, ldc: width };
    kernels.gemm({ ...common, ...places, transA: false, transB: false, m: rows, n: width, k: vocab, beta: 0 });
  } else {
    const b = devicePtr(hiddenAt(hidden));
    const places = { a: logits.ptr, lda: vocab, b, ldb: width, c: out.ptr, ldc: width };
    const beta = start === 0 ? 0 : 1;
    kernels.gemm({ ...common, ...places, transA: true, transB: false, m: vocab, n: width, k: rows, beta });
  }
}

/** A tensor in the dtype that the products take; itself when it has that one. */
function inDtype(call: ForwardCall<CrossEntropyAttrs>, tensor: Tensor, dtype: DType): Tensor {
  if (tensor.dtype === dtype) return tensor;
  const narrow = call.empty(tensor.shape, dtype);
  call.device.kernels.cast(dtype, tensor.dtype, narrow.ptr, tensor.ptr, tensor.numel);
  return narrow;
}

/**
 * hidden [.., width], weight [vocab, width], labels int32 [..] → the sum of the losses of `hidden @ weightᵀ`, float32
 * scalar. See Note [Chunks of logits].
 */
export const linearCrossEntropyOp: ComputeOp<CrossEntropyAttrs> = {
  name: "linearCrossEntropy",
  infer: ([hidden, weight, labels]) => {
    if (
      hidden === undefined || weight === undefined || hidden.dtype !== weight.dtype || hidden.dtype.kind !== "float"
    ) {
      throw new DTypeError(
        "linearCrossEntropy",
        "hidden and weight must have one float dtype",
        hidden?.dtype.name ?? "",
      );
    }
    if (weight.ndim !== 2 || hidden.shape.at(-1) !== weight.shape[1]) {
      throw new ShapeError("linearCrossEntropy", "the last dim must equal the weight's", hidden.shape, weight.shape);
    }
    checkLabels("linearCrossEntropy", hidden, labels);
    return [{ shape: [], dtype: float32 }];
  },
  forward: (call) => {
    const [hidden, weight, labels] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
    const [vocab = 1] = weight.shape;
    const rows = labels.numel;
    const { kernels } = call.device;
    const perChunk = Math.max(1, Math.min(rows, Math.floor(LOGITS_CHUNK_ELEMENTS / vocab)));
    const losses = call.empty([rows], float32);
    const logits = call.empty([perChunk, vocab], float32);
    const dhidden = call.needs(0) ? call.empty(hidden.shape, hidden.dtype) : undefined;
    const dweight = call.needs(1) ? call.empty(weight.shape, float32) : undefined;
    if (dweight !== undefined && rows === 0) kernels.fill(float32, dweight.ptr, dweight.numel, 0); // no chunk writes it
    for (let start = 0; start < rows; start += perChunk) {
      const chunk = { hidden, weight, start, rows: Math.min(perChunk, rows - start) };
      chunkProduct(call, "logits", chunk, logits, logits);
      const bad = kernels.crossEntropy(
        float32,
        devicePtr(losses.ptr + start * 4),
        call.recording ? logits.ptr : NO_PTR,
        logits.ptr,
        devicePtr(labels.ptr + start * 4),
        chunk.rows,
        vocab,
        call.attrs.ignoreIndex,
        1,
      );
      refuseLabel(labels, bad < 0 ? bad : start + bad, vocab);
      const dlogits = call.recording ? inDtype(call, logits, hidden.dtype) : logits;
      if (dhidden !== undefined) chunkProduct(call, "dhidden", chunk, dlogits, dhidden);
      if (dweight !== undefined) chunkProduct(call, "dweight", chunk, dlogits, dweight);
      if (dlogits !== logits) dlogits.dispose();
    }
    kernels.reduce("sum", float32, call.output(0).ptr, losses.ptr, 1, rows, 1);
    if (dhidden !== undefined) call.save(dhidden);
    if (dweight !== undefined) call.save(dweight);
  },
  backward: (call) => {
    if (call.needs(0)) scaleByGrad(call, 0, call.saved(0));
    if (call.needs(1)) scaleByGrad(call, 1, call.saved(call.needs(0) ? 1 : 0));
  },
};
