/**
 * Kernels of training: the gradient norm, optimizer updates, sums over ranks, random numbers.
 *
 * @module
 */

/** Kernels of training. */
export const TRAINING_KERNELS = {
  /** An accumulator of nothing, with a fault counted where the status record holds one. */
  clearAccumulator: {
    values: {},
    arrays: { accumulator: { writes: "int64", shape: ["ACCUMULATOR_WORDS"] } },
    faults: true,
  },
  /**
   * Adds the squares of `src`: those of each `block` elements (the last block may be shorter) in float64 in a fixed order, and
   * the blocks' sums exactly. So adding the words of accumulators adds their values, in any order to the same bits.
   */
  sumSquares: {
    flops: [2, "n"],
    values: { dtype: "float", n: "size", block: "size" },
    arrays: {
      accumulator: { updates: "int64", shape: ["ACCUMULATOR_WORDS"] },
      src: { reads: "dtype", shape: ["n"] },
    },
  },
  /**
   * From an accumulator, summed over all ranks: the norm (its root); `factor = min(1, maxNorm / (norm + 1e-6))`, NaN if the norm
   * is; and the gate, 1 if an update must not happen, because a fault was counted or, with `errorIfNonfinite`, because the norm
   * is not finite, which then is a fault too, and leaves the factor at 1.
   */
  clipFactor: {
    values: { maxNorm: "f64", errorIfNonfinite: "switch" },
    arrays: {
      norm: { writes: "float32", shape: [1] },
      factor: { writes: "float32", shape: [1], optional: true },
      gate: { writes: "int32", shape: [1] },
      accumulator: { reads: "int64", shape: ["ACCUMULATOR_WORDS"] },
    },
    faults: true,
  },
  /**
   * AdamW (decoupled decay) on a run of `n` elements with states of `numStates`, as a table of records says; see
   * `optim/records.ts`. Steps of active records are counted up, from which follow the bias corrections. Nothing changes where
   * the gate is set.
   */
  adamw: {
    flops: [14, "numStates"],
    values: { n: "size", numStates: "size", numRecords: "size" },
    arrays: {
      param: { updates: "float32", shape: ["n"] },
      grad: { reads: "float32", shape: ["n"] },
      expAvg: { updates: "float32", shape: ["numStates"] },
      expAvgSq: { updates: "float32", shape: ["numStates"] },
      records: { reads: "uint8", shape: ["numRecords", "RECORD_BYTES"] },
      steps: { updates: "int32", shape: ["numRecords"] },
      gate: { reads: "int32", shape: [1], optional: true },
    },
  },
  /** SGD with coupled decay, likewise. The first step of a record copies the gradient to its momentum. */
  sgd: {
    flops: [6, "n"],
    values: { n: "size", numStates: "size", numRecords: "size" },
    arrays: {
      param: { updates: "float32", shape: ["n"] },
      grad: { reads: "float32", shape: ["n"] },
      momentumBuffer: { updates: "float32", shape: ["numStates"], optional: true },
      records: { reads: "uint8", shape: ["numRecords", "RECORD_BYTES"] },
      steps: { updates: "int32", shape: ["numRecords"] },
      gate: { reads: "int32", shape: [1], optional: true },
    },
  },
  /**
   * Sum over ranks: `dst[i] (+)= (src_0[i] + src_1[i] + …) * scale`, added in that order in float32, then scaled by a value in
   * device memory. int64 sums as integers and is not scaled.
   */
  sumRanks: {
    flops: ["sources", "n"],
    values: {
      dtype: { dtypes: ["float32", "bfloat16", "int64"] },
      dstDtype: { widens: "dtype" },
      n: "size",
      accumulate: "switch",
    },
    arrays: {
      dst: { writes: "dstDtype", updatesIf: "accumulate", shape: ["n"], mayBe: ["sources"] },
      sources: { reads: "dtype", shape: ["n"], list: true },
      scale: { reads: "float32", shape: [1], optional: true },
    },
  },
  /** Uniform in [low, high): element i depends on (key, offset + i) only. `key`, `offset` below 2^53. Philox 4x32-10. */
  uniform: {
    flops: [2, "n"],
    values: { n: "size", key: "f64", offset: "f64", low: "f32", high: "f32" },
    arrays: { dst: { writes: "float32", shape: ["n"] } },
  },
  /** Normal, by Box–Muller from the same stream. */
  normal: {
    flops: [8, "n"],
    values: { n: "size", key: "f64", offset: "f64", mean: "f32", std: "f32" },
    arrays: { dst: { writes: "float32", shape: ["n"] } },
  },
} as const;
