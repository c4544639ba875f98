/**
 * The kernel table: what a device can compute. Kernels take addresses and sizes, never tensors; shapes, dtypes and
 * lifetimes were checked above. All matrices are row-major, sizes and strides count elements, and `0` as an address
 * marked optional means "leave it out". Arithmetic is float32 whatever the storage dtype, rounded once on store.
 *
 * Every kernel is deterministic: the same arguments give the same bits, whatever ran before.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { DevicePtr } from "./device.ts";

/** Element-wise functions of one value, with up to two scalar parameters `p0`, `p1`. The order is the kernel's code. */
export const UNARY_OPS = [
  "neg",
  "exp",
  "log",
  "sqrt",
  "rsqrt",
  "tanh",
  "sigmoid",
  "silu",
  "gelu", // exact: x Φ(x)
  "geluTanh", // the tanh approximation (`gelu_new`)
  "relu",
  "square",
  "abs",
  "reciprocal",
  "sin",
  "cos",
  "addScalar", // x + p0
  "mulScalar", // x * p0
  "clamp", // min(max(x, p0), p1); gradient 1 where p0 <= x <= p1
] as const;
/** Name of an element-wise function of one value. */
export type UnaryOp = typeof UNARY_OPS[number];

/** Element-wise functions of two values. The order is the kernel's code. */
export const BINARY_OPS = ["add", "sub", "mul", "div", "maximum", "minimum"] as const;
/** Name of an element-wise function of two values. */
export type BinaryOp = typeof BINARY_OPS[number];

/** Reductions. The order is the kernel's code. */
export const REDUCE_OPS = ["sum", "mean", "max", "min"] as const;
/** Name of a reduction. */
export type ReduceOp = typeof REDUCE_OPS[number];

/** One matrix product, `c = alpha * op(a) @ op(b) + beta * c`, for each of `batch` matrices. */
export interface GemmArgs {
  /** dtype of `a` and `b`: float32 or bfloat16. */
  readonly dtype: DType;
  /** dtype of `c`: float32 or bfloat16 (bfloat16 only when `dtype` is). Sums are float32 either way. */
  readonly outDtype: DType;
  /** `op(a)` is the transpose of the stored matrix. */
  readonly transA: boolean;
  readonly transB: boolean;
  /** Rows of `op(a)` and `c`. */
  readonly m: number;
  /** Columns of `op(b)` and `c`. */
  readonly n: number;
  /** Columns of `op(a)`, rows of `op(b)`. */
  readonly k: number;
  readonly alpha: number;
  readonly a: DevicePtr;
  /** Row stride of `a` as stored. */
  readonly lda: number;
  /** Elements from one matrix of the batch to the next; 0 repeats the same one. */
  readonly strideA: number;
  readonly b: DevicePtr;
  readonly ldb: number;
  readonly strideB: number;
  /** With 0, `c` is written without being read (it may hold NaN). */
  readonly beta: number;
  readonly c: DevicePtr;
  readonly ldc: number;
  readonly strideC: number;
  readonly batch: number;
}

/** Sizes, strides and switches of one attention call. Rows of `q`, `k`, `v`, `o` are tokens: [batch, seq, heads * headDim]. */
export interface AttentionShape {
  readonly dtype: DType;
  readonly batch: number;
  readonly seqQ: number;
  readonly seqK: number;
  readonly heads: number;
  /** A divisor of `heads`; query head h reads kv head `floor(h / (heads / kvHeads))`. */
  readonly kvHeads: number;
  /** At most 256. */
  readonly headDim: number;
  /** Elements from one token's row of `q` to the next; `o`, and gradients, have the stride of a dense row. */
  readonly strideQ: number;
  readonly strideK: number;
  readonly strideV: number;
  /** Factor on q·k. */
  readonly scale: number;
  /** Query i sees keys j <= i + seqK - seqQ only. */
  readonly causal: boolean;
  /** Optional uint8 [batch, seqK]: 0 hides the key. A query that sees no key gives 0. */
  readonly keyMask: DevicePtr;
}

/** Hyper-parameters of one AdamW update, common to all ranges. */
export interface AdamwArgs {
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  /** `1 - beta1 ** step`. */
  readonly biasCorrection1: number;
  /** `sqrt(1 - beta2 ** step)`. */
  readonly biasCorrection2Sqrt: number;
}

/**
 * The functions of a device. `dtype` arguments are float32 or bfloat16 unless said otherwise.
 * Names follow PyTorch; `d` before a name is a gradient.
 */
export interface KernelTable {
  /** `dst[0..n) = value`, any dtype (integers are rounded towards zero). */
  fill(dtype: DType, dst: DevicePtr, n: number, value: number): void;
  /** `dst[i] = src[i]` with conversion between float32 and bfloat16 (round to nearest even), and from int32 to float32. */
  cast(dstDtype: DType, srcDtype: DType, dst: DevicePtr, src: DevicePtr, n: number): void;
  /** Copies between two strided arrays of one shape (at most 8 dims), any dtype. */
  copyStrided(
    dtype: DType,
    dst: DevicePtr,
    dstStrides: readonly number[],
    src: DevicePtr,
    srcStrides: readonly number[],
    shape: readonly number[],
  ): void;
  unary(op: UnaryOp, dtype: DType, dst: DevicePtr, src: DevicePtr, n: number, p0: number, p1: number): void;
  /** `dx = dy * op'(x)`. */
  unaryBackward(
    op: UnaryOp,
    dtype: DType,
    dx: DevicePtr,
    dy: DevicePtr,
    x: DevicePtr,
    n: number,
    p0: number,
    p1: number,
  ): void;
  /** `dst` is dense of `shape`; `a` and `b` have strides over the same shape (0 broadcasts). */
  binary(
    op: BinaryOp,
    dtype: DType,
    dst: DevicePtr,
    a: DevicePtr,
    aStrides: readonly number[],
    b: DevicePtr,
    bStrides: readonly number[],
    shape: readonly number[],
  ): void;
  /** `dst[i] += src[i]`; dtypes may differ (float32 and bfloat16). */
  accumulate(dstDtype: DType, srcDtype: DType, dst: DevicePtr, src: DevicePtr, n: number): void;
  /** `dst[i] = src[i] * factor`; `dst` may be `src`. */
  scale(dtype: DType, dst: DevicePtr, src: DevicePtr, n: number, factor: number): void;
  /** `dst[i] = src[i] * factor[0]` with a float32 factor in device memory; `dst` may be `src`. */
  scaleBy(dtype: DType, dst: DevicePtr, src: DevicePtr, n: number, factor: DevicePtr): void;
  /** Reduces the middle of [outer, n, inner] to [outer, inner]; sums are float64 inside. */
  reduce(op: ReduceOp, dtype: DType, dst: DevicePtr, src: DevicePtr, outer: number, n: number, inner: number): void;
  /** int32 `dst[row]` = column of the row's largest value, the first of equals. */
  argmax(dtype: DType, dst: DevicePtr, src: DevicePtr, rows: number, cols: number): void;

  gemm(args: GemmArgs): void;

  softmax(dtype: DType, y: DevicePtr, x: DevicePtr, rows: number, cols: number): void;
  softmaxBackward(dtype: DType, dx: DevicePtr, dy: DevicePtr, y: DevicePtr, rows: number, cols: number): void;
  /** `y = w * (x * rstd)` with `rstd = 1 / sqrt(mean(x²) + eps)`, float32 [rows], kept for the backward. `w` optional. */
  rmsNorm(
    dtype: DType,
    y: DevicePtr,
    rstd: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    rows: number,
    cols: number,
    eps: number,
  ): void;
  /** `dx` in dtype; `dw` float32 [cols], overwritten. Both optional. */
  rmsNormBackward(
    dtype: DType,
    dx: DevicePtr,
    dw: DevicePtr,
    dy: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    rstd: DevicePtr,
    rows: number,
    cols: number,
  ): void;
  /** `w`, `b` optional; `mean`, `rstd` float32 [rows]. */
  layerNorm(
    dtype: DType,
    y: DevicePtr,
    mean: DevicePtr,
    rstd: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    b: DevicePtr,
    rows: number,
    cols: number,
    eps: number,
  ): void;
  /** `dw`, `db` float32 [cols], overwritten; `dx`, `dw`, `db` optional. */
  layerNormBackward(
    dtype: DType,
    dx: DevicePtr,
    dw: DevicePtr,
    db: DevicePtr,
    dy: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    mean: DevicePtr,
    rstd: DevicePtr,
    rows: number,
    cols: number,
  ): void;

  /**
   * Rotary embedding in the half layout: the first `rotaryDim` of each head, `y = x cos + rotateHalf(x) sin`; the rest
   * is copied. `cos`, `sin` float32 [positions, rotaryDim / 2]. `positions` int32 [batch, seq], or 0 for 0 … seq - 1.
   * `inverse` turns the other way: the backward. `y` is dense [batch, seq, heads * headDim]; `x` has row stride `strideX`.
   */
  rope(
    dtype: DType,
    y: DevicePtr,
    x: DevicePtr,
    strideX: number,
    cos: DevicePtr,
    sin: DevicePtr,
    positions: DevicePtr,
    batch: number,
    seq: number,
    heads: number,
    headDim: number,
    rotaryDim: number,
    inverse: boolean,
  ): void;
  /** float32 `cos[p, i] = scale * cos(p * invFreq[i])`, and `sin` alike, for p in [0, positions), i in [0, half). */
  ropeTable(
    cos: DevicePtr,
    sin: DevicePtr,
    invFreq: DevicePtr,
    positions: number,
    half: number,
    scale: number,
  ): void;

  /** Rows of `w` [vocab, cols] by int32 `ids` [n]. Returns the place in `ids` of the first id out of range, or -1. */
  embedding(
    dtype: DType,
    y: DevicePtr,
    w: DevicePtr,
    ids: DevicePtr,
    n: number,
    vocab: number,
    cols: number,
  ): number;
  /** float32 `dw` [vocab, cols], overwritten: rows of `dy` added in the order of `ids`; rows of `paddingIdx` (or -1) skipped. */
  embeddingBackward(
    dtype: DType,
    dw: DevicePtr,
    dy: DevicePtr,
    ids: DevicePtr,
    n: number,
    vocab: number,
    cols: number,
    paddingIdx: number,
  ): void;

  /**
   * Cross-entropy of each row of `logits` [rows, cols] with int32 `labels`; rows labeled `ignoreIndex` give 0.
   * `losses` float32 [rows]. `dlogits` (optional, may be `logits`) = (softmax - onehot) * gradScale, in dtype.
   * Returns the first row whose label is out of range, or -1.
   */
  crossEntropy(
    dtype: DType,
    losses: DevicePtr,
    dlogits: DevicePtr,
    logits: DevicePtr,
    labels: DevicePtr,
    rows: number,
    cols: number,
    ignoreIndex: number,
    gradScale: number,
  ): number;

  /** `o` dense [batch, seqQ, heads * headDim]; `lse` float32 [batch, heads, seqQ]. Memory linear in the sequence. */
  attention(shape: AttentionShape, o: DevicePtr, lse: DevicePtr, q: DevicePtr, k: DevicePtr, v: DevicePtr): void;
  /** `dq`, `dk`, `dv` dense, overwritten. */
  attentionBackward(
    shape: AttentionShape,
    dq: DevicePtr,
    dk: DevicePtr,
    dv: DevicePtr,
    dO: DevicePtr,
    o: DevicePtr,
    lse: DevicePtr,
    q: DevicePtr,
    k: DevicePtr,
    v: DevicePtr,
  ): void;

  /** `y = silu(gate) * up` over n dense elements. */
  swiglu(dtype: DType, y: DevicePtr, gate: DevicePtr, up: DevicePtr, n: number): void;
  swigluBackward(
    dtype: DType,
    dgate: DevicePtr,
    dup: DevicePtr,
    dy: DevicePtr,
    gate: DevicePtr,
    up: DevicePtr,
    n: number,
  ): void;

  /**
   * AdamW (decoupled decay) on a flat float32 run. `ranges` is `numRanges` records of 16 bytes in device memory:
   * { start: u32, end: u32, learningRate: f32, weightDecay: f32 }, elements from the addresses given.
   */
  adamw(
    param: DevicePtr,
    grad: DevicePtr,
    expAvg: DevicePtr,
    expAvgSq: DevicePtr,
    ranges: DevicePtr,
    numRanges: number,
    args: AdamwArgs,
  ): void;
  /** SGD with coupled decay on a flat float32 run, the same ranges. `momentumBuffer` optional; `first` copies the gradient in. */
  sgd(
    param: DevicePtr,
    grad: DevicePtr,
    momentumBuffer: DevicePtr,
    ranges: DevicePtr,
    numRanges: number,
    momentum: number,
    dampening: number,
    nesterov: boolean,
    first: boolean,
  ): void;

  /** Bytes of an exact accumulator: int64 limbs of 32 bits, so integer addition of two accumulators adds their values. */
  readonly accumulatorBytes: number;
  /** Adds each row's sum of squares (float64, fixed order) exactly; `rows * cols` dense elements. Does not clear. */
  sumSquares(dtype: DType, accumulator: DevicePtr, src: DevicePtr, rows: number, cols: number): void;
  /** The accumulator's value rounded to float64; NaN or Infinity if a term was. */
  accumulatorValue(accumulator: DevicePtr): number;
  /** Largest absolute value; NaN if any is. */
  maxAbs(dtype: DType, src: DevicePtr, n: number): number;

  /**
   * Sum over ranks: `dst[i] (+)= (src_0[i] + src_1[i] + …) * scale`, added in that order in float32, then scaled.
   * `dtype` float32 or bfloat16 of the sources; `dstDtype` float32 or that. int64 sources sum as integers (scale ignored).
   */
  sumRanks(
    dstDtype: DType,
    dtype: DType,
    dst: DevicePtr,
    sources: readonly DevicePtr[],
    n: number,
    scale: number,
    accumulate: boolean,
  ): void;

  /** float32 uniform in [low, high): element i depends on (key, offset + i) only. `key`, `offset` below 2^53. Philox 4x32-10. */
  uniform(dst: DevicePtr, n: number, key: number, offset: number, low: number, high: number): void;
  /** float32 normal by Box–Muller from the same stream. */
  normal(dst: DevicePtr, n: number, key: number, offset: number, mean: number, std: number): void;
}

/** Functions of one number that give the same bits in every runtime, for host code whose results reach tensors. */
export interface ExactMath {
  exp(x: number): number;
  log(x: number): number;
  sin(x: number): number;
  cos(x: number): number;
  pow(x: number, y: number): number;
}
