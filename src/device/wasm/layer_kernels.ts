/**
 * Kernels of layers: matrix products, softmax, norms, positions, embeddings, loss, attention, SwiGLU.
 *
 * @module
 */
import type { KernelExports } from "../../../wasm/mod.ts";
import { bfloat16, float32 } from "../../dtype.ts";
import { DTypeError, InternalError } from "../../errors.ts";
import type { AttentionShape, KernelTable } from "../kernels.ts";
import { floatCode } from "./parameters.ts";
import type { Parameters } from "./parameters.ts";

/** Largest head dim of attention: `MAX_HEAD_DIM` of `wasm/src/attention.rs`. */
const MAX_HEAD_DIM = 256;

/** The part of the table that is made here. */
type LayerKernels = Pick<
  KernelTable,
  | "gemm"
  | "softmax"
  | "softmaxBackward"
  | "rmsNorm"
  | "rmsNormBackward"
  | "layerNorm"
  | "layerNormBackward"
  | "rope"
  | "ropeTable"
  | "embedding"
  | "embeddingBackward"
  | "crossEntropy"
  | "attention"
  | "attentionBackward"
  | "swiglu"
  | "swigluBackward"
>;

/** Kernels of layers. */
export function layerKernels(exports: KernelExports, parameters: Parameters): LayerKernels {
  return {
    gemm(args) {
      const { dtype, outDtype, transA, transB, m, n, k, alpha, a, lda, strideA, b, ldb, strideB } = args;
      if (outDtype === bfloat16 && dtype === float32) {
        throw new DTypeError("gemm", "a bfloat16 product needs bfloat16 factors", dtype.name, outDtype.name);
      }
      exports.gemm(
        floatCode("gemm", dtype),
        floatCode("gemm", outDtype),
        Number(transA),
        Number(transB),
        m,
        n,
        k,
        alpha,
        a,
        lda,
        strideA,
        b,
        ldb,
        strideB,
        args.beta,
        args.c,
        args.ldc,
        args.strideC,
        args.batch,
      );
    },
    softmax(dtype, y, x, rows, cols) {
      exports.softmax(floatCode("softmax", dtype), y, x, rows, cols);
    },
    softmaxBackward(dtype, dx, dy, y, rows, cols) {
      exports.softmax_backward(floatCode("softmax", dtype), dx, dy, y, rows, cols);
    },
    rmsNorm(dtype, y, rstd, x, w, rows, cols, eps) {
      exports.rms_norm(floatCode("rmsNorm", dtype), y, rstd, x, w, rows, cols, eps);
    },
    rmsNormBackward(dtype, dx, dw, dy, x, w, rstd, rows, cols) {
      exports.rms_norm_backward(floatCode("rmsNorm", dtype), dx, dw, dy, x, w, rstd, rows, cols);
    },
    layerNorm(dtype, y, mean, rstd, x, w, b, rows, cols, eps) {
      exports.layer_norm(floatCode("layerNorm", dtype), y, mean, rstd, x, w, b, rows, cols, eps);
    },
    layerNormBackward(dtype, dx, dw, db, dy, x, w, mean, rstd, rows, cols) {
      exports.layer_norm_backward(floatCode("layerNorm", dtype), dx, dw, db, dy, x, w, mean, rstd, rows, cols);
    },
    rope(dtype, y, x, strideX, cos, sin, positions, batch, seq, heads, headDim, rotaryDim, inverse) {
      exports.rope(
        floatCode("rope", dtype),
        y,
        x,
        strideX,
        cos,
        sin,
        positions,
        batch,
        seq,
        heads,
        headDim,
        rotaryDim,
        Number(inverse),
      );
    },
    ropeTable(cos, sin, invFreq, positions, half, scale) {
      exports.rope_table(cos, sin, invFreq, positions, half, scale);
    },
    embedding(dtype, y, w, ids, n, vocab, cols) {
      return exports.embedding(floatCode("embedding", dtype), y, w, ids, n, vocab, cols);
    },
    embeddingBackward(dtype, dw, dy, ids, n, vocab, cols, paddingIdx) {
      exports.embedding_backward(floatCode("embedding", dtype), dw, dy, ids, n, vocab, cols, paddingIdx);
    },
    crossEntropy(dtype, losses, dlogits, logits, labels, rows, cols, ignoreIndex, gradScale) {
      const code = floatCode("crossEntropy", dtype);
      return exports.cross_entropy(code, losses, dlogits, logits, labels, rows, cols, ignoreIndex, gradScale);
    },
    attention(shape, o, lse, q, k, v) {
      const code = attentionParameters(parameters, shape);
      exports.attention(code, shape.scale, shape.keyMask, o, lse, q, k, v);
    },
    attentionBackward(shape, dq, dk, dv, dO, o, lse, q, k, v) {
      const code = attentionParameters(parameters, shape);
      exports.attention_backward(code, shape.scale, shape.keyMask, dq, dk, dv, dO, o, lse, q, k, v);
    },
    swiglu(dtype, y, gate, up, n) {
      exports.swiglu(floatCode("swiglu", dtype), y, gate, up, n);
    },
    swigluBackward(dtype, dgate, dup, dy, gate, up, n) {
      exports.swiglu_backward(floatCode("swiglu", dtype), dgate, dup, dy, gate, up, n);
    },
  };
}

/** Writes the sizes of an attention call; returns its dtype's code. */
function attentionParameters(parameters: Parameters, shape: AttentionShape): number {
  const { batch, seqQ, seqK, heads, kvHeads, headDim } = shape;
  if (headDim > MAX_HEAD_DIM || heads % kvHeads !== 0) {
    throw new InternalError(
      `attention takes head dims up to ${MAX_HEAD_DIM} and heads that kv heads divide: ` +
        `got head dim ${headDim}, ${heads} heads, ${kvHeads} kv heads`,
    );
  }
  const { strideQ, strideK, strideV } = shape;
  parameters.words(batch, seqQ, seqK, heads, kvHeads, headDim, strideQ, strideK, strideV, Number(shape.causal));
  return floatCode("attention", shape.dtype);
}
