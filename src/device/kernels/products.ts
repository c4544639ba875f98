/**
 * Kernels that multiply matrices: products and attention.
 *
 * @module
 */

export const PRODUCT_KERNELS = {
  /**
   * `c = alpha * op(a) @ op(b) + beta * c` for each matrix of the batch, all row-major. A stride of 0 repeats one matrix. With
   * `beta` 0, `c` is not read. Sums are float32 for all dtypes.
   */
  gemm: {
    flops: [2, "batch", "m", "n", "k"],
    values: {
      dtype: "float",
      outDtype: { widens: "dtype" },
      transA: "switch",
      transB: "switch",
      m: "size",
      n: "size",
      k: "size",
      alpha: "f32",
      beta: "f32",
      lda: "size",
      ldb: "size",
      ldc: "size",
      batch: "size",
      strideA: "size",
      strideB: "size",
      strideC: "size",
    },
    arrays: {
      a: { reads: "dtype", shape: ["batch", "m", "k"], strides: ["strideA", "lda"], transposed: "transA" },
      b: { reads: "dtype", shape: ["batch", "k", "n"], strides: ["strideB", "ldb"], transposed: "transB" },
      c: { writes: "outDtype", updatesIf: "beta", shape: ["batch", "m", "n"], strides: ["strideC", "ldc"] },
    },
  },
  /**
   * `o = softmax(scale * q kᵀ) v` for each head, and `lse`, the logarithm of each row's sum. Memory is linear in the sequence,
   * except for a mask with a row for each query.
   * - Query head h reads kv head `floor(h / (heads / kvHeads))`. Heads of values may have another width than heads of keys.
   * - `causal`: query i sees keys j <= i + seqK - seqQ only.
   * - `window` w > 0: of these, query i sees the last w only.
   * - `softcap` c > 0: a score s becomes c tanh(s / c), before keys are hidden; 0 leaves scores as they are.
   * - `keyMask` [batch, maskRows, seqK]: a 0 hides the key, from all queries if `maskRows` is 1, from one query if it is seqQ.
   * - `starts` [batch, seqQ]: the first key that each query may see. It does not decrease along a sequence, so that packed
   *   documents see themselves only, and blocks of keys before them are skipped.
   * - A query that sees no key gives 0.
   * - `p` > 0: dropout of each probability as in `dropout`, with the head as plane, the query as row, the key as column.
   * - With 2-byte floats a device may round probabilities, and in the backward gradients of scores, once before it multiplies
   *   them, as tensor cores do.
   * - A sequence has at most 2^31 - 2^12 tokens: CUDA kernels count tokens in 32 bits, up to the end of a tile.
   * - `flops` counts all keys as seen, and values as wide as keys.
   */
  attention: {
    flops: [4, "batch", "heads", "seqQ", "seqK", "headDim"],
    values: {
      dtype: "float",
      batch: "size",
      seqQ: { atMost: 2_147_479_552 },
      seqK: { atMost: 2_147_479_552 },
      heads: "size",
      kvHeads: { divides: "heads" },
      headDim: { atMost: 256 },
      valueDim: { atMost: 256 },
      strideQ: "size",
      strideK: "size",
      strideV: "size",
      scale: "f32",
      softcap: "f32",
      causal: "switch",
      window: "size",
      maskRows: "size",
      p: "f64",
      key: "f64",
      sample: "f64",
    },
    arrays: {
      keyMask: { reads: "uint8", shape: ["batch", "maskRows", "seqK"], optional: true },
      starts: { reads: "int32", shape: ["batch", "seqQ"], optional: true },
      o: { writes: "dtype", shape: ["batch", "seqQ", "heads", "valueDim"] },
      lse: { writes: "float32", shape: ["batch", "heads", "seqQ"] },
      q: { reads: "dtype", shape: [["batch", "seqQ"], ["heads", "headDim"]], strides: ["strideQ"] },
      k: { reads: "dtype", shape: [["batch", "seqK"], ["kvHeads", "headDim"]], strides: ["strideK"] },
      v: { reads: "dtype", shape: [["batch", "seqK"], ["kvHeads", "valueDim"]], strides: ["strideV"] },
    },
  },
  attentionBackward: {
    flops: [10, "batch", "heads", "seqQ", "seqK", "headDim"],
    values: {
      dtype: "float",
      batch: "size",
      seqQ: { atMost: 2_147_479_552 },
      seqK: { atMost: 2_147_479_552 },
      heads: "size",
      kvHeads: { divides: "heads" },
      headDim: { atMost: 256 },
      valueDim: { atMost: 256 },
      strideQ: "size",
      strideK: "size",
      strideV: "size",
      scale: "f32",
      softcap: "f32",
      causal: "switch",
      window: "size",
      maskRows: "size",
      p: "f64",
      key: "f64",
      sample: "f64",
    },
    arrays: {
      keyMask: { reads: "uint8", shape: ["batch", "maskRows", "seqK"], optional: true },
      starts: { reads: "int32", shape: ["batch", "seqQ"], optional: true },
      dq: { writes: "dtype", shape: ["batch", "seqQ", "heads", "headDim"] },
      dk: { writes: "dtype", shape: ["batch", "seqK", "kvHeads", "headDim"] },
      dv: { writes: "dtype", shape: ["batch", "seqK", "kvHeads", "valueDim"] },
      dO: { reads: "dtype", shape: ["batch", "seqQ", "heads", "valueDim"] },
      o: { reads: "dtype", shape: ["batch", "seqQ", "heads", "valueDim"] },
      lse: { reads: "float32", shape: ["batch", "heads", "seqQ"] },
      q: { reads: "dtype", shape: [["batch", "seqQ"], ["heads", "headDim"]], strides: ["strideQ"] },
      k: { reads: "dtype", shape: [["batch", "seqK"], ["kvHeads", "headDim"]], strides: ["strideK"] },
      v: { reads: "dtype", shape: [["batch", "seqK"], ["kvHeads", "valueDim"]], strides: ["strideV"] },
    },
  },
  /**
   * Lets each query see one more key, whose score is the head's sink and whose value is zero. Called after `attention`, whose `o`
   * and `lse` it updates; `attentionBackward` takes the updated ones.
   */
  attentionSinks: {
    flops: [2, "batch", "seq", "heads", "headDim"],
    values: { dtype: "float", batch: "size", seq: "size", heads: "size", headDim: "size" },
    arrays: {
      o: { updates: "dtype", shape: ["batch", "seq", "heads", "headDim"] },
      lse: { updates: "float32", shape: ["batch", "heads", "seq"] },
      sinks: { reads: "dtype", shape: ["heads"] },
    },
  },
  /** Gradient of the sinks; takes `o` and `lse` as `attentionSinks` updated them. */
  attentionSinksBackward: {
    flops: [2, "batch", "seq", "heads", "headDim"],
    values: { dtype: "float", batch: "size", seq: "size", heads: "size", headDim: "size" },
    arrays: {
      dsinks: { writes: "float32", shape: ["heads"] },
      dO: { reads: "dtype", shape: ["batch", "seq", "heads", "headDim"] },
      o: { reads: "dtype", shape: ["batch", "seq", "heads", "headDim"] },
      lse: { reads: "float32", shape: ["batch", "heads", "seq"] },
      sinks: { reads: "dtype", shape: ["heads"] },
    },
  },
  /**
   * `y[b, t, c] = Σ_k w[c, k] x[b, t + k + 1 - width, c]`, where tokens before the first of a document are zeros. `starts` gives for
   * each token the place in its sequence of its document's first token; without it a sequence is one document.
   */
  causalConv: {
    flops: [2, "batch", "seq", "channels", "width"],
    values: { dtype: "float", batch: "size", seq: "size", channels: "size", width: { atMost: 64 } },
    arrays: {
      starts: { reads: "int32", shape: ["batch", "seq"], optional: true },
      y: { writes: "dtype", shape: ["batch", "seq", "channels"] },
      x: { reads: "dtype", shape: ["batch", "seq", "channels"] },
      w: { reads: "dtype", shape: ["channels", "width"] },
    },
  },
  causalConvBackward: {
    flops: [4, "batch", "seq", "channels", "width"],
    values: { dtype: "float", batch: "size", seq: "size", channels: "size", width: { atMost: 64 } },
    arrays: {
      starts: { reads: "int32", shape: ["batch", "seq"], optional: true },
      dx: { writes: "dtype", shape: ["batch", "seq", "channels"], optional: true },
      dw: { writes: "float32", shape: ["channels", "width"], optional: true },
      dy: { reads: "dtype", shape: ["batch", "seq", "channels"] },
      x: { reads: "dtype", shape: ["batch", "seq", "channels"] },
      w: { reads: "dtype", shape: ["channels", "width"] },
    },
  },
  /**
   * The gated delta rule. The state S [keyDim, valueDim] of each value head changes with each token, in this order:
   * 1. `S = e^g S`, with `g` at most 0;
   * 2. `S += k (beta (v - Sᵀ k))ᵀ`;
   * 3. `o = Sᵀ (scale * q)`.
   *
   * Value head h reads key head `floor(h / (valueHeads / keyHeads))`. A sequence is cut into `chunks` chunks of `chunk` tokens;
   * `states` receives the state before each chunk, for the backward. `flops` assumes heads of 128 and chunks of 64.
   * `starts` gives for each token the place in its sequence of its document's first token, before which the state is zeros;
   * without it a sequence is one document, which begins with `state`.
   */
  gatedDelta: {
    flops: [10, "batch", "seq", "valueHeads", "keyDim", "valueDim"],
    values: {
      dtype: "float",
      batch: "size",
      seq: "size",
      keyHeads: { divides: "valueHeads" },
      valueHeads: "size",
      keyDim: { atMost: 256 },
      valueDim: { atMost: 256 },
      chunk: { atMost: 64 },
      chunks: "size",
      scale: "f32",
    },
    arrays: {
      starts: { reads: "int32", shape: ["batch", "seq"], optional: true },
      o: { writes: "dtype", shape: ["batch", "seq", "valueHeads", "valueDim"] },
      state: { updates: "float32", shape: ["batch", "valueHeads", "keyDim", "valueDim"] },
      states: { writes: "float32", shape: ["batch", "valueHeads", "chunks", "keyDim", "valueDim"], optional: true },
      q: { reads: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      k: { reads: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      v: { reads: "dtype", shape: ["batch", "seq", "valueHeads", "valueDim"] },
      g: { reads: "float32", shape: ["batch", "seq", "valueHeads"] },
      beta: { reads: "dtype", shape: ["batch", "seq", "valueHeads"] },
    },
  },
  /** `dState`: before the call the gradient of the last state, after it the gradient of the first. */
  gatedDeltaBackward: {
    flops: [26, "batch", "seq", "valueHeads", "keyDim", "valueDim"],
    values: {
      dtype: "float",
      batch: "size",
      seq: "size",
      keyHeads: { divides: "valueHeads" },
      valueHeads: "size",
      keyDim: { atMost: 256 },
      valueDim: { atMost: 256 },
      chunk: { atMost: 64 },
      chunks: "size",
      scale: "f32",
    },
    arrays: {
      starts: { reads: "int32", shape: ["batch", "seq"], optional: true },
      dState: { updates: "float32", shape: ["batch", "valueHeads", "keyDim", "valueDim"] },
      dq: { writes: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      dk: { writes: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      dv: { writes: "dtype", shape: ["batch", "seq", "valueHeads", "valueDim"] },
      dg: { writes: "float32", shape: ["batch", "seq", "valueHeads"] },
      dbeta: { writes: "dtype", shape: ["batch", "seq", "valueHeads"] },
      dO: { reads: "dtype", shape: ["batch", "seq", "valueHeads", "valueDim"] },
      states: { reads: "float32", shape: ["batch", "valueHeads", "chunks", "keyDim", "valueDim"] },
      q: { reads: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      k: { reads: "dtype", shape: ["batch", "seq", "keyHeads", "keyDim"] },
      v: { reads: "dtype", shape: ["batch", "seq", "valueHeads", "valueDim"] },
      g: { reads: "float32", shape: ["batch", "seq", "valueHeads"] },
      beta: { reads: "dtype", shape: ["batch", "seq", "valueHeads"] },
    },
  },
} as const;
