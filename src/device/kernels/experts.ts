/**
 * Kernels of mixtures of experts: routers, the order of tokens by expert, products of each expert's rows. A pair is a token and one
 * of the experts that it goes to. Where experts' rows end lies in device memory, so that shapes, memory and what the host does
 * are the same however tokens are routed.
 *
 * @module
 */

/** Kernels of mixtures of experts. */
export const EXPERT_KERNELS = {
  /**
   * The experts that each token goes to, best first, and the weights of their outputs: from its logits by `scoring`,
   *
   * - `softmax`, `sigmoid`: scores of all experts, of which the `topK` largest are taken, by score plus `bias`;
   * - `softmaxOfTop`: the `topK` largest logits, of which then the softmax;
   * - `sparseMixer`: the best expert, by its share in a softmax of those that are not more than `2 * jitter` behind it, relative to
   *   the larger magnitude; then the same without it. With `noise`, numbers in (0, 1), that expert is drawn by those shares: it
   *   has the largest sum of logit and `-ln(-ln(noise[.., 0, expert]))`; and if it is not the best, its weight counts 0.3333 times
   *   unless `noise[.., 1, 0]` is above 0.75.
   *
   * Of `groups` of experts, those of the `topGroups` with the largest sums of their `groupBest` (1 or 2) best are candidates. With
   * `normalize` weights are divided by their sum; all are multiplied by `scale`. Equal ones are chosen as `torch.topk` does on a CPU.
   */
  route: {
    flops: [6, "rows", "experts"],
    values: {
      dtype: "float",
      scoring: "scoring",
      rows: "size",
      experts: { atMost: 4096 },
      topK: "size",
      groups: { divides: "experts" },
      topGroups: "size",
      groupBest: { atMost: 2 },
      normalize: "switch",
      scale: "f32",
      jitter: "f32",
    },
    arrays: {
      weights: { writes: "float32", shape: ["rows", "topK"] },
      chosen: { writes: "int32", shape: ["rows", "topK"] },
      logits: { reads: "dtype", shape: ["rows", "experts"] },
      bias: { reads: "float32", shape: ["experts"], optional: true },
      noise: { reads: "float32", shape: ["rows", "topK", 2, "experts"], optional: true },
    },
  },
  /** The gradient of the logits; which experts are chosen is constant, and so is what drawn ones count for, here 1. */
  routeBackward: {
    flops: [10, "rows", "experts"],
    values: {
      dtype: "float",
      scoring: "scoring",
      rows: "size",
      experts: { atMost: 4096 },
      topK: "size",
      normalize: "switch",
      scale: "f32",
      jitter: "f32",
    },
    arrays: {
      dlogits: { writes: "dtype", shape: ["rows", "experts"] },
      dweights: { reads: "float32", shape: ["rows", "topK"] },
      chosen: { reads: "int32", shape: ["rows", "topK"] },
      logits: { reads: "dtype", shape: ["rows", "experts"] },
    },
  },
  /** The place of each pair when they are sorted by expert, in their order otherwise; and where each expert's end. */
  sortPairs: {
    values: { pairs: "size", experts: "size" },
    arrays: {
      places: { writes: "int32", shape: ["pairs"] },
      ends: { writes: "int32", shape: ["experts"] },
      chosen: { reads: "int32", shape: ["pairs"] },
    },
  },
  /** `y[t] = Σ_j weights[t, j] x[places[t, j]]`, a sum of `count` rows rounded once; without `weights` each counts as it is. */
  combinePairs: {
    flops: [2, "rows", "count", "cols"],
    values: { dtype: "float", rows: "size", count: "size", cols: "size" },
    arrays: {
      y: { writes: "dtype", shape: ["rows", "cols"] },
      x: { reads: "dtype", shape: ["rows", "count", "cols"] },
      places: { reads: "int32", shape: ["rows", "count"] },
      weights: { reads: "float32", shape: ["rows", "count"], optional: true },
    },
  },
  /** `dx[places[t, j]] = weights[t, j] dy[t]`, which without `weights` brings rows to their places; `x` is for `dweights`. */
  combinePairsBackward: {
    flops: [3, "rows", "count", "cols"],
    values: { dtype: "float", rows: "size", count: "size", cols: "size" },
    arrays: {
      dx: { writes: "dtype", shape: ["rows", "count", "cols"], optional: true },
      dweights: { writes: "float32", shape: ["rows", "count"], optional: true },
      dy: { reads: "dtype", shape: ["rows", "cols"] },
      x: { reads: "dtype", shape: ["rows", "count", "cols"], optional: true },
      places: { reads: "int32", shape: ["rows", "count"] },
      weights: { reads: "float32", shape: ["rows", "count"], optional: true },
    },
  },
  /** `c = a @ op(b[g])` for the rows of each group: those from `ends[g - 1]`, or 0, to `ends[g]`. Sums are float32. */
  groupedGemm: {
    flops: [2, "rows", "n", "k"],
    values: { dtype: "float", transB: "switch", groups: "size", rows: "size", n: "size", k: "size" },
    arrays: {
      c: { writes: "dtype", shape: ["rows", "n"] },
      a: { reads: "dtype", shape: ["rows", "k"] },
      b: { reads: "dtype", shape: ["groups", "k", "n"], transposed: "transB" },
      ends: { reads: "int32", shape: ["groups"] },
    },
  },
  /** `c[g] = aᵀ @ b` over the rows of each group, zeros of a group without rows: the gradient of `groupedGemm`'s `b`. */
  groupedGemmOuter: {
    flops: [2, "rows", "m", "n"],
    values: {
      dtype: "float",
      outDtype: { widens: "dtype" },
      groups: "size",
      rows: "size",
      m: "size",
      n: "size",
    },
    arrays: {
      c: { writes: "outDtype", shape: ["groups", "m", "n"] },
      a: { reads: "dtype", shape: ["rows", "m"] },
      b: { reads: "dtype", shape: ["rows", "n"] },
      ends: { reads: "int32", shape: ["groups"] },
    },
  },
  /** `x[r] += bias[g]` for the rows of each group. */
  groupedBias: {
    flops: ["rows", "cols"],
    values: { dtype: "float", groups: "size", rows: "size", cols: "size" },
    arrays: {
      x: { updates: "dtype", shape: ["rows", "cols"] },
      bias: { reads: "dtype", shape: ["groups", "cols"] },
      ends: { reads: "int32", shape: ["groups"] },
    },
  },
  /** Sums of the rows of each group, float64 inside: the gradient of `groupedBias`'s `bias`. */
  groupedSum: {
    flops: ["rows", "cols"],
    values: { groups: "size", rows: "size", cols: "size" },
    arrays: {
      y: { writes: "float32", shape: ["groups", "cols"] },
      x: { reads: "float32", shape: ["rows", "cols"] },
      ends: { reads: "int32", shape: ["groups"] },
    },
  },
  /** `y = (clamp(up, ±limit) + 1) g sigmoid(alpha g)` of `g = min(gate, limit)`; gates and ups come in turn. */
  clampedSwiglu: {
    flops: [8, "n"],
    values: { dtype: "float", n: "size", alpha: "f32", limit: "f32" },
    arrays: {
      y: { writes: "dtype", shape: ["n"] },
      gateUp: { reads: "dtype", shape: ["n", 2] },
    },
  },
  clampedSwigluBackward: {
    flops: [16, "n"],
    values: { dtype: "float", n: "size", alpha: "f32", limit: "f32" },
    arrays: {
      dgateUp: { writes: "dtype", shape: ["n", 2] },
      dy: { reads: "dtype", shape: ["n"] },
      gateUp: { reads: "dtype", shape: ["n", 2] },
    },
  },
  /** Places of the `k` largest of each row, from the largest on; NaN counts as that. Of equal ones, those that `torch.topk` takes. */
  topk: {
    values: { dtype: "float", rows: "size", cols: { atMost: 262144 }, k: "size" },
    arrays: {
      indices: { writes: "int32", shape: ["rows", "k"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
} as const;
