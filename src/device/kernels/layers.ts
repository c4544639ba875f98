/**
 * Kernels of layers: softmax, norms, positions, embeddings, loss, SwiGLU. Names follow PyTorch; `d` before a name is a gradient.
 *
 * @module
 */

export const LAYER_KERNELS = {
  /** Softmax of each row; with `log`, its logarithm. */
  softmax: {
    flops: [5, "rows", "cols"],
    values: { dtype: "float", log: "switch", rows: "size", cols: "size" },
    arrays: {
      y: { writes: "dtype", shape: ["rows", "cols"], mayBe: ["x"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
  softmaxBackward: {
    flops: [4, "rows", "cols"],
    values: { dtype: "float", log: "switch", rows: "size", cols: "size" },
    arrays: {
      dx: { writes: "dtype", shape: ["rows", "cols"], mayBe: ["dy"] },
      dy: { reads: "dtype", shape: ["rows", "cols"] },
      y: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
  /**
   * `y = w * (x * rstd)` with `rstd = 1 / sqrt(mean(x²) + eps)`, kept for the backward. With `zeroCentered`, the factor is `1 +
   * w`, and `x * rstd` is not rounded before it is multiplied.
   */
  rmsNorm: {
    flops: [4, "rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size", eps: "f64", zeroCentered: "switch" },
    arrays: {
      y: { writes: "dtype", shape: ["rows", "cols"] },
      rstd: { writes: "float32", shape: ["rows"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
      w: { reads: "dtype", shape: ["cols"], optional: true },
    },
  },
  rmsNormBackward: {
    flops: [10, "rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size", zeroCentered: "switch" },
    arrays: {
      dx: { writes: "dtype", shape: ["rows", "cols"], optional: true },
      dw: { writes: "float32", shape: ["cols"], optional: true },
      dy: { reads: "dtype", shape: ["rows", "cols"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
      w: { reads: "dtype", shape: ["cols"], optional: true },
      rstd: { reads: "float32", shape: ["rows"] },
    },
  },
  /** `y = w * (x - mean) * rstd + b`. */
  layerNorm: {
    flops: [8, "rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size", eps: "f64" },
    arrays: {
      y: { writes: "dtype", shape: ["rows", "cols"] },
      mean: { writes: "float32", shape: ["rows"] },
      rstd: { writes: "float32", shape: ["rows"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
      w: { reads: "dtype", shape: ["cols"], optional: true },
      b: { reads: "dtype", shape: ["cols"], optional: true },
    },
  },
  layerNormBackward: {
    flops: [14, "rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size" },
    arrays: {
      dx: { writes: "dtype", shape: ["rows", "cols"], optional: true },
      dw: { writes: "float32", shape: ["cols"], optional: true },
      db: { writes: "float32", shape: ["cols"], optional: true },
      dy: { reads: "dtype", shape: ["rows", "cols"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
      w: { reads: "dtype", shape: ["cols"], optional: true },
      mean: { reads: "float32", shape: ["rows"] },
      rstd: { reads: "float32", shape: ["rows"] },
    },
  },
  /**
   * Rotary embedding of `2 * half` elements of each head, from element `start` on; the rest is copied.
   * - Each element of the first half is rotated with its counterpart in the second, `y = x cos + rotateHalf(x) sin`; if
   *   `interleaved`, each pair of neighbours.
   * - Without `positions` they are 0 … seq - 1. A token whose position exceeds the tables becomes zeros, and is a fault.
   * - `inverse` rotates backward: the gradient.
   */
  rope: {
    flops: [6, "batch", "seq", "heads", "half"],
    values: {
      dtype: "float",
      batch: "size",
      seq: "size",
      heads: "size",
      headDim: "size",
      start: "size",
      half: "size",
      tableRows: "size",
      strideX: "size",
      interleaved: "switch",
      inverse: "switch",
    },
    arrays: {
      y: { writes: "dtype", shape: ["batch", "seq", "heads", "headDim"] },
      x: { reads: "dtype", shape: [["batch", "seq"], ["heads", "headDim"]], strides: ["strideX"] },
      cos: { reads: "float32", shape: ["tableRows", "half"] },
      sin: { reads: "float32", shape: ["tableRows", "half"] },
      positions: { reads: "int32", shape: ["batch", "seq"], optional: true },
    },
    faults: true,
  },
  /** `cos[p, i] = scale * cos(p * invFreq[i])`, and `sin` alike. */
  ropeTable: {
    flops: [5, "positions", "half"],
    values: { positions: "size", half: "size", scale: "f32" },
    arrays: {
      cos: { writes: "float32", shape: ["positions", "half"] },
      sin: { writes: "float32", shape: ["positions", "half"] },
      invFreq: { reads: "float32", shape: ["half"] },
    },
  },
  /**
   * Each element becomes zero with probability `p`, or is divided by `1 - p`; the same for gradients. Element [b, r, c] is
   * dropped if word `c mod 4` of a Philox block is less than `p * 2^32`. The block has key `key` and counter (floor(c / 4), r, s
   * mod 2^32, floor(s / 2^32) + plane * 2^21), where s = `sample` + b, and the plane is 0 here. So it depends on the element's
   * sample and its place in it, and not on the batch. `key` and `sample` are below 2^53.
   */
  dropout: {
    flops: ["batch", "rows", "cols"],
    values: {
      dtype: "float",
      batch: "size",
      rows: { atMost: 4_294_967_296 },
      cols: { atMost: 4_294_967_296 },
      p: "f64",
      key: "f64",
      sample: "f64",
    },
    arrays: {
      y: { writes: "dtype", shape: ["batch", "rows", "cols"], mayBe: ["x"] },
      x: { reads: "dtype", shape: ["batch", "rows", "cols"] },
    },
  },
  /** Rows of `w` by id; an id out of range gives zeros and a fault. */
  embedding: {
    values: { dtype: "float", n: "size", vocab: "size", cols: "size" },
    arrays: {
      y: { writes: "dtype", shape: ["n", "cols"] },
      w: { reads: "dtype", shape: ["vocab", "cols"] },
      ids: { reads: "int32", shape: ["n"] },
    },
    faults: true,
  },
  /** Adds rows of `dy` in the order of `ids`, except ids of `paddingIdx` (or -1) and out of range. */
  embeddingBackward: {
    flops: ["n", "cols"],
    values: { dtype: "float", n: "size", vocab: "size", cols: "size", paddingIdx: "i32" },
    arrays: {
      dw: { writes: "float32", shape: ["vocab", "cols"] },
      dy: { reads: "dtype", shape: ["n", "cols"] },
      ids: { reads: "int32", shape: ["n"] },
    },
  },
  /**
   * Cross-entropy of each row and, if `dlogits` is given, its gradient `softmax - onehot`. Rows with label `ignoreIndex` give 0.
   * Rows with a label out of range give 0 and a fault, which names the row counted from `firstRow`. All classes share
   * `labelSmoothing` of a label's weight. `zLoss` is the factor of the square of the logarithm of the sum of exponentials.
   */
  crossEntropy: {
    flops: [6, "rows", "cols"],
    values: {
      dtype: "float",
      rows: "size",
      cols: "size",
      ignoreIndex: "i32",
      firstRow: "size",
      labelSmoothing: "f64",
      zLoss: "f64",
    },
    arrays: {
      losses: { writes: "float32", shape: ["rows"] },
      dlogits: { writes: "dtype", shape: ["rows", "cols"], optional: true, mayBe: ["logits"] },
      logits: { reads: "dtype", shape: ["rows", "cols"] },
      labels: { reads: "int32", shape: ["rows"] },
    },
    faults: true,
  },
  /** `y = silu(gate) * up`. */
  swiglu: {
    flops: [5, "n"],
    values: { dtype: "float", n: "size" },
    arrays: {
      y: { writes: "dtype", shape: ["n"], mayBe: ["gate", "up"] },
      gate: { reads: "dtype", shape: ["n"] },
      up: { reads: "dtype", shape: ["n"] },
    },
  },
  swigluBackward: {
    flops: [12, "n"],
    values: { dtype: "float", n: "size" },
    arrays: {
      dgate: { writes: "dtype", shape: ["n"], mayBe: ["gate"] },
      dup: { writes: "dtype", shape: ["n"], mayBe: ["up"] },
      dy: { reads: "dtype", shape: ["n"] },
      gate: { reads: "dtype", shape: ["n"] },
      up: { reads: "dtype", shape: ["n"] },
    },
  },
} as const;
