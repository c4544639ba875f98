/**
 * Kernels of mixtures of experts: routers, the order of tokens by expert, products of each expert's rows. A pair is a token and
 * one of its experts. The ends of experts' rows lie in device memory, so shapes, memory and the host's work do not depend on the
 * routing.
 *
 * @module
 */

export const EXPERT_KERNELS = {
  /**
   * The experts of each token, best first, and the weights of their outputs, from the token's logits by `scoring`:
   *
   * - `softmax`, `sigmoid`: scores of all experts; the `topK` largest by score plus `bias` are taken.
   * - `softmaxOfTop`: the `topK` largest logits are taken, and then their softmax.
   * - `sparseMixer`: the best expert, by its share in a softmax of the experts that are at most `2 * jitter` behind it, relative
   *   to the larger magnitude; then the same without that expert. With `noise`, numbers in (0, 1), the expert is drawn by those
   *   shares: it has the largest sum of logit and `-ln(-ln(noise[.., 0, expert]))`; if it is not the best, its weight counts
   *   0.3333 times unless `noise[.., 1, 0]` is above 0.75.
   *
   * Candidates are the experts of the `topGroups` of `groups` groups with the largest sums of their `groupBest` (1 or 2) best.
   * With `normalize`, weights are divided by their sum; all are multiplied by `scale`. Ties go as in `torch.topk` on a CPU.
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
  /** Gradient of the logits. The choice of experts is constant, and the factor of drawn experts counts as 1. */
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
  /**
   * Place of each pair in the order by expert, where pairs of one expert keep their order; and the end of each expert's pairs.
   */
  sortPairs: {
    values: { pairs: "size", experts: "size" },
    arrays: {
      places: { writes: "int32", shape: ["pairs"] },
      ends: { writes: "int32", shape: ["experts"] },
      chosen: { reads: "int32", shape: ["pairs"] },
    },
  },
  /** `y[t] = Σ_j weights[t, j] x[places[t, j]]`, a sum of `count` rows rounded once; without `weights` all are 1. */
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
  /** `dx[places[t, j]] = weights[t, j] dy[t]`; without `weights`, it copies rows to their places. `x` is read for `dweights`. */
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
  /** `c = a @ op(b[g])` for the rows of each group, from `ends[g - 1]` (or 0) to `ends[g]`. Sums are float32. */
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
  /** `c[g] = aᵀ @ b` over the rows of each group, zeros for a group without rows: the gradient of `groupedGemm`'s `b`. */
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
  /** Sums of the rows of each group, float64 inside: the gradient of the `bias` of `groupedBias`. */
  groupedSum: {
    flops: ["rows", "cols"],
    values: { groups: "size", rows: "size", cols: "size" },
    arrays: {
      y: { writes: "float32", shape: ["groups", "cols"] },
      x: { reads: "float32", shape: ["rows", "cols"] },
      ends: { reads: "int32", shape: ["groups"] },
    },
  },
  /** `y = (clamp(up, ±limit) + 1) g sigmoid(alpha g)` with `g = min(gate, limit)`; gates and ups alternate. */
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
  /** Columns of the `k` largest of each row, the largest first; NaN counts as largest. Ties go as in `torch.topk`. */
  topk: {
    values: { dtype: "float", rows: "size", cols: { atMost: 262144 }, k: "size" },
    arrays: {
      indices: { writes: "int32", shape: ["rows", "k"] },
      x: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
} as const;
