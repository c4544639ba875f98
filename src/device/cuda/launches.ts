/**
 * Which kernels are written for CUDA, in which file of `kernels/`, and how a call is spread over the card: a thread for each
 * element of something, or a block for each row, whose sizes are named as in the kernel table. Any grid does all of the work, so
 * these lines are about speed alone. To add a kernel, write its function in a file and its line here.
 *
 * @module
 */
import type { Factor } from "../kernels/signature.ts";
import type { KernelName } from "../kernels/table.ts";

/** How a call is spread, and the float32 that each block needs besides its arguments: the sum of products of sizes. */
export type Launch =
  & { readonly scratch?: readonly (readonly Factor[])[] }
  & (
    /** A thread for each element: the product of sizes. */
    | {
      readonly elements: readonly Factor[];
      /** Whether one block runs `<kernel>After` then, for what must not happen before all elements are done. */
      readonly after?: true;
    }
    /** A block for each row: the product of sizes, and of some of one of them together. */
    | { readonly rows: readonly Factor[]; readonly tile?: readonly [size: string, of: number] }
    /** Two kinds of blocks, one for each tile of one size and of another, for each of the rest. */
    | { readonly rows: readonly Factor[]; readonly tiles: readonly [a: string, b: string, of: number] }
  );

/** Threads of a block. */
export const THREADS = 256;

/** One block in all. */
const ONE: Launch = { rows: [] };

const each = (...elements: Factor[]): Launch => ({ elements });
const rows = (...sizes: Factor[]): Launch => ({ rows: sizes });

/** What a block keeps of a chunk of the gated delta rule: matrices of keys, of values and of pairs of tokens, and rows. */
const CHUNK: readonly (readonly Factor[])[] = [
  [7, "chunk", "keyDim"],
  [4, "chunk", "valueDim"],
  [4, "chunk", "chunk"],
  [4, "chunk"],
];

/** Files that come before a file in the text of its kernels; all come after `dev.cuh`. */
export const BEFORE: Readonly<Record<string, readonly string[]>> = {
  attention: ["sight"],
  flash: ["sight", "tiles"],
  flash_backward: ["sight", "tiles"],
};

/** Files of kernels, and those in each. */
export type Launches = Readonly<Record<string, { readonly [K in KernelName]?: Launch }>>;

/** The files and their kernels. */
export const LAUNCHES: Launches = {
  elementwise: {
    fill: each("n"),
    cast: each("n"),
    unary: each("n"),
    unaryBackward: each("n"),
    accumulate: each("n"),
    scale: each("n"),
    scaleBy: each("n"),
    swiglu: each("n"),
    swigluBackward: each("n"),
  },
  strided: {
    copyStrided: each("shape"),
    binary: each("shape"),
    compare: each("shape"),
    select: each("shape"),
    gather: each("outer", "m", "inner"),
    scatterAdd: each("outer", "inner"),
  },
  reduce: {
    maxAbs: ONE,
    reduce: rows("outer", "inner"),
    argmax: rows("rows"),
    cumsum: each("rows"),
  },
  softmax: {
    softmax: rows("rows"),
    softmaxBackward: rows("rows"),
    crossEntropy: rows("rows"),
  },
  norm: {
    rmsNorm: rows("rows"),
    rmsNormBackward: rows("rows"),
    layerNorm: rows("rows"),
    layerNormBackward: rows("rows"),
  },
  position: {
    rope: rows("batch", "seq"),
    ropeTable: each("positions", "half"),
    embedding: rows("n"),
    embeddingBackward: rows("vocab"),
  },
  attention: {
    attention: { rows: ["batch", "heads"], tile: ["seqQ", 16] },
    attentionBackward: { rows: ["batch", "heads"], tiles: ["seqQ", "seqK", 16] },
    attentionSinks: each("batch", "seq", "heads"),
    attentionSinksBackward: rows("heads"),
  },
  training: {
    clearAccumulator: ONE,
    sumPowers: each("n"),
    largest: ONE,
    accumulateLargest: ONE,
    clipFactor: ONE,
    updateScale: ONE,
    adamw: { elements: ["n"], after: true },
    sgd: { elements: ["n"], after: true },
    sumRanks: each("n"),
  },
  random: {
    uniform: each("n"),
    normal: each("n"),
    sampleUniform: each("batch", "rows", "cols"),
    dropout: each("batch", "rows", "cols"),
  },
  experts: {
    sortPairs: each("experts"),
    combinePairs: each("rows", "cols"),
    combinePairsBackward: rows("rows", "count"),
    groupedGemm: rows("rows"),
    groupedGemmOuter: rows("groups", "m"),
    groupedBias: rows("rows"),
    groupedSum: rows("groups"),
    clampedSwiglu: each("n"),
    clampedSwigluBackward: each("n"),
  },
  router: {
    route: rows("rows"),
    routeBackward: rows("rows"),
    topk: { rows: ["rows"], scratch: [[2, "cols"]] }, // numbers and their places
  },
  sequence: {
    causalConv: each("batch", "seq", "channels"),
    causalConvBackward: rows("channels", "width"),
  },
  delta: {
    gatedDelta: { rows: ["batch", "valueHeads"], scratch: CHUNK },
    gatedDeltaBackward: { rows: ["batch", "keyHeads"], scratch: CHUNK },
  },
  product: {
    gemm: { rows: ["batch"], tile: ["m", 1] },
  },
};

/** Where a kernel is written; undefined if it is not. */
export function launchOf(
  kernel: string,
  launches: Launches,
): { readonly file: string; readonly launch: Launch } | undefined {
  for (const [file, kernels] of Object.entries(launches)) {
    const launch = Object.entries(kernels).find(([name]) => name === kernel)?.[1];
    if (launch !== undefined) return { file, launch };
  }
  return undefined;
}
