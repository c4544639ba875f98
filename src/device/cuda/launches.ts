/**
 * The kernels that are implemented for CUDA, by the file of `kernels/`, and the grid of their calls: a thread for each element,
 * or a block for each row, with sizes named as in the kernel table. Any grid does all of the work, so these lines only affect
 * speed. To add a kernel, write its function in a file and its line here.
 *
 * @module
 */
import type { Factor } from "../kernels/signature.ts";
import type { KernelName } from "../kernels/table.ts";

/** The grid of a call, and the float32 scratch of each block: the sum of products of sizes. */
export type Launch =
  & { readonly scratch?: readonly (readonly Factor[])[] }
  & (
    /** A thread for each element: the product of sizes. */
    | {
      readonly elements: readonly Factor[];
      /** True if one block then calls `<kernel>After`, for work that must follow all elements. */
      readonly after?: true;
    }
    /** A block for each row: the product of sizes; with `tile`, for each `of` indices of `size` in each row. */
    | { readonly rows: readonly Factor[]; readonly tile?: readonly [size: string, of: number] }
    /** Two kinds of blocks, for tiles of two sizes, for each index of the other sizes. */
    | { readonly rows: readonly Factor[]; readonly tiles: readonly [a: string, b: string, of: number] }
  );

export const THREADS = 256;

/** One block in all. */
const ONE: Launch = { rows: [] };

const each = (...elements: Factor[]): Launch => ({ elements });
const rows = (...sizes: Factor[]): Launch => ({ rows: sizes });

/** Scratch of a block for a chunk of the gated delta rule: matrices of keys, of values and of pairs of tokens, and rows. */
const CHUNK: readonly (readonly Factor[])[] = [
  [7, "chunk", "keyDim"],
  [4, "chunk", "valueDim"],
  [4, "chunk", "chunk"],
  [4, "chunk"],
];

/** Files that precede a file in the text of its kernels; all follow `dev.cuh`. */
export const BEFORE: Readonly<Record<string, readonly string[]>> = {
  attention: ["sight"],
  flash: ["sight", "tiles"],
  flash_backward: ["sight", "tiles"],
};

/** Files of kernels, with the kernels in each. */
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
    lion: { elements: ["n"], after: true },
    lerp: each("n"),
    largestOfBlocks: rows("blocks"),
    quantizeBlocks: each("n"),
    dequantizeBlocks: each("n"),
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
  quantized: {
    quantize: each("blocks"),
    dequantize: each("n"),
    gemmQuantized: rows("m"),
  },
  product: {
    gemm: { rows: ["batch"], tile: ["m", 1] },
  },
};

/** The file and the grid of a kernel; undefined if it is not implemented. */
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
