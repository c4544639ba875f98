/**
 * Kernels of training: the gradient norm, optimizer updates, sums over ranks, random numbers.
 *
 * @module
 */

export const TRAINING_KERNELS = {
  /** Clears an accumulator, and counts a fault in it if the status record holds one. */
  clearAccumulator: {
    values: {},
    arrays: { accumulator: { writes: "int64", shape: ["ACCUMULATOR_WORDS"] } },
    faults: true,
  },
  /**
   * Adds the magnitudes of `src`, to a power from 1 to 3: within each `block` of elements (the last may be shorter) in float64 in
   * a fixed order, and the blocks' sums exactly. So the words of accumulators can be added, in any order, and give the same bits.
   */
  sumPowers: {
    flops: [2, "n"],
    values: { dtype: "float", power: { atMost: 3 }, n: "size", block: "size" },
    arrays: {
      accumulator: { updates: "int64", shape: ["ACCUMULATOR_WORDS"] },
      src: { reads: "dtype", shape: ["n"] },
    },
  },
  /** The largest of some magnitudes, NaN if any is NaN; and 1 if the status record holds a fault, else 0. */
  largest: {
    flops: ["n"],
    values: { n: "size" },
    arrays: {
      dst: { writes: "float32", shape: [2] },
      src: { reads: "float32", shape: ["n"] },
    },
    faults: true,
  },
  /** Makes an accumulator of the result of `largest`, reduced to the largest of all ranks. */
  accumulateLargest: {
    values: {},
    arrays: {
      accumulator: { writes: "int64", shape: ["ACCUMULATOR_WORDS"] },
      src: { reads: "float32", shape: [2] },
    },
  },
  /**
   * Computes the clipping of an update, from an accumulator of powers that is summed over all ranks:
   * - `norm`: the norm of the unscaled gradients, i.e. the root of the sum over `scale`;
   * - `factor = min(1, maxNorm / (norm + 1e-6)) / scale`, NaN if the norm is;
   * - `gate`: 1 if the update must not happen, because a fault was counted, or the norm is not finite and `ifNonfinite` is not
   *   `keep`. Then the factor is 1, and `fault` writes a fault, `skip` notes an overflow.
   */
  clipFactor: {
    values: { power: { atMost: 3 }, maxNorm: "f64", ifNonfinite: "nonfinite" },
    arrays: {
      norm: { writes: "float32", shape: [1] },
      factor: { writes: "float32", shape: [1], optional: true },
      gate: { writes: "int32", shape: [1] },
      overflow: { updates: "int32", shape: [1], optional: true },
      accumulator: { reads: "int64", shape: ["ACCUMULATOR_WORDS"] },
      scale: { reads: "float32", shape: [1], optional: true },
    },
    faults: true,
  },
  /**
   * The loss scale of the next step (PyTorch's `_amp_update_scale_`). After an overflow, which is cleared, it is multiplied by
   * `backoff`; after `interval` steps without one, counted in `progress`, by `growth`. It never becomes infinite.
   */
  updateScale: {
    values: { growth: "f64", backoff: "f64", interval: { atMost: 2_147_483_647 } },
    arrays: {
      scale: { updates: "float32", shape: [1] },
      progress: { updates: "int32", shape: [1] },
      overflow: { updates: "int32", shape: [1] },
    },
  },
  /**
   * AdamW (decoupled decay) of a flat shard of `n` elements, with states of `numStates` elements, by a table of records; see
   * `optim/records.ts`. Each active record's step is counted up, and gives the bias corrections. If the gate is closed, nothing
   * changes.
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
  /** SGD with coupled decay, by a table of records like AdamW. A record's first step copies the gradient to its momentum. */
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
  /** Lion (decoupled decay), by a table of records like AdamW: a weight moves by the rate, against the sign of an average of gradients. */
  lion: {
    flops: [10, "numStates"],
    values: { n: "size", numStates: "size", numRecords: "size" },
    arrays: {
      param: { updates: "float32", shape: ["n"] },
      grad: { reads: "float32", shape: ["n"] },
      expAvg: { updates: "float32", shape: ["numStates"] },
      records: { reads: "uint8", shape: ["numRecords", "RECORD_BYTES"] },
      steps: { updates: "int32", shape: ["numRecords"] },
      gate: { reads: "int32", shape: [1], optional: true },
    },
  },
  /**
   * `dst[i] += w (src[i] - dst[i])`, with `w` = `weight`, times `factor` if there is one; from the nearer end as PyTorch's `lerp`. If
   * the gate is closed, nothing changes.
   */
  lerp: {
    flops: [3, "n"],
    values: { n: "size", weight: "f64" },
    arrays: {
      dst: { updates: "float32", shape: ["n"] },
      src: { reads: "float32", shape: ["n"] },
      factor: { reads: "float32", shape: [1], optional: true },
      gate: { reads: "int32", shape: [1], optional: true },
    },
  },
  /** The largest magnitude of each block of elements; the first element is number `first` of its block. NaN if any element is. */
  largestOfBlocks: {
    flops: ["n"],
    values: { blocks: "size", n: "size", first: "size", block: "size" },
    arrays: {
      dst: { writes: "float32", shape: ["blocks"] },
      src: { reads: "float32", shape: ["n"] },
    },
  },
  /**
   * Codes of elements, divided by the largest magnitude of their blocks: each the number of the nearest of the map's values, which
   * ascend. If the gate is closed, nothing changes.
   */
  quantizeBlocks: {
    flops: [9, "n"],
    values: { n: "size", first: "size", block: "size", blocks: "size" },
    arrays: {
      codes: { updates: "uint8", shape: ["n"] },
      src: { reads: "float32", shape: ["n"] },
      largest: { reads: "float32", shape: ["blocks"] },
      map: { reads: "float32", shape: [256] },
      gate: { reads: "int32", shape: [1], optional: true },
    },
  },
  /** The values of codes: the map's, times the largest magnitude of their blocks. */
  dequantizeBlocks: {
    flops: ["n"],
    values: { n: "size", first: "size", block: "size", blocks: "size" },
    arrays: {
      dst: { writes: "float32", shape: ["n"] },
      codes: { reads: "uint8", shape: ["n"] },
      largest: { reads: "float32", shape: ["blocks"] },
      map: { reads: "float32", shape: [256] },
    },
  },
  /**
   * Sum over ranks: `dst[i] (+)= (src_0[i] + src_1[i] + …) * scale`, added in that order in float32, then scaled by a value in
   * device memory. int64 sums are integers, and are not scaled. With `pastCaches` a device may write `dst` past its caches, for
   * sums too large for any cache to hold until they are read.
   */
  sumRanks: {
    flops: ["sources", "n"],
    values: {
      dtype: { dtypes: ["float32", "bfloat16", "float16", "int64"] },
      dstDtype: { widens: "dtype" },
      n: "size",
      accumulate: "switch",
      pastCaches: "switch",
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
  /** Uniform in (low, high), from 23 bits of the words that `dropout` would compare; each value is the middle of its step. */
  sampleUniform: {
    flops: [2, "batch", "rows", "cols"],
    values: {
      batch: "size",
      rows: { atMost: 4_294_967_296 },
      cols: { atMost: 4_294_967_296 },
      key: "f64",
      sample: "f64",
      low: "f32",
      high: "f32",
    },
    arrays: { dst: { writes: "float32", shape: ["batch", "rows", "cols"] } },
  },
  /** Normal, by Box–Muller from the same stream. */
  normal: {
    flops: [8, "n"],
    values: { n: "size", key: "f64", offset: "f64", mean: "f32", std: "f32" },
    arrays: { dst: { writes: "float32", shape: ["n"] } },
  },
} as const;
