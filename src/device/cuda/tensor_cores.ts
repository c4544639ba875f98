/**
 * The calls that use tensor cores, with functions of their own: attention of 2-byte floats, with all masks, strides and options.
 * Attention of float32 uses `attention.cu`, as tensor cores would round its numbers.
 *
 * A form of a kernel is compiled for heads of up to `headDim` dims. The rows of a warp are chosen so that threads keep all sums
 * in registers, and the tiles of a block fit into 99 KiB, which every card from sm_80 on gives one block. The number of
 * concurrent blocks of 128 threads is limited
 * - by registers: to two, or to three where few are used;
 * - by shared memory of 228 KiB (sm_90, 100): to two or more;
 * - of 164 KiB (sm_80): to two or more, but to one for heads of 256 dims and for `dq` of 192;
 * - of 100 KiB (sm_86, 89, 120): to one, but to two for the forward of 64.
 *
 * @module
 */
import type { DType } from "../../dtype.ts";
import type { Factor } from "../kernels/signature.ts";
import type { KernelName } from "../kernels/table.ts";

/** True if calls of a dtype use tensor cores, in kernels that have functions for them. */
export function runsOnTensorCores({ kind, byteLength }: DType): boolean {
  return kind === "float" && byteLength === NUMBER_BYTES;
}

/** Threads of a block of these functions: four warps. */
export const TENSOR_THREADS = 128;
const NUMBER_BYTES = 2;
/** Rows that a warp multiplies at once, and padding of each row of a tile, in numbers; see `tiles.cu`. */
const [PART, PAD] = [16, 8];
const WARPS = 4;

/** One function of a form: a block for each tile of rows of each plane. */
export interface TensorPass {
  readonly name: string;
  /** Arguments of its template after the dtype. */
  readonly template: readonly (number | boolean)[];
  /** Number of planes: the product of sizes. */
  readonly planes: readonly Factor[];
  /** The size that is cut into tiles, and the rows of a tile. */
  readonly tile: readonly [size: string, of: number];
  readonly sharedBytes: number;
}

/** The functions of a call in order, for heads of up to these dims. */
export interface TensorForm {
  readonly headDim: number;
  readonly valueDim: number;
  readonly passes: readonly TensorPass[];
  readonly file: string;
  /** Number of float32 that functions of a call leave for later ones: the product of sizes. */
  readonly scratch?: readonly Factor[];
}

function tileBytes(...tiles: readonly (readonly [rows: number, dims: number])[]): number {
  return tiles.reduce((sum, [rows, dims]) => sum + NUMBER_BYTES * rows * (dims + PAD), 0);
}

/** Rows of a block whose warps have `parts` parts each. */
const rowsOf = (parts: number): number => WARPS * PART * parts;

/** The forward: parts of a warp, and keys of a step. */
function forward(headDim: number, valueDim: number, parts: number, keys: number): TensorForm {
  const rows = rowsOf(parts);
  const pass: TensorPass = {
    name: "attentionTiles",
    template: [headDim, valueDim, parts, keys],
    planes: ["batch", "heads"],
    tile: ["seqQ", rows],
    sharedBytes: tileBytes([rows, headDim], [2 * keys, headDim], [2 * keys, valueDim]),
  };
  return { headDim, valueDim, passes: [pass], file: "flash" };
}

/** Parts of a warp, and rows of a step. */
type BackwardPassSizes = readonly [parts: number, step: number];

/**
 * The backward: sizes of the pass over queries and of the pass over keys, which may be split into one for `dk` and one for `dv`.
 */
function backward(
  headDim: number,
  valueDim: number,
  ofQueries: BackwardPassSizes,
  ofKeys: BackwardPassSizes,
  isSplit = false,
): TensorForm {
  const pass = (
    name: string,
    [parts, step]: BackwardPassSizes,
    size: string,
    planes: string,
    ...which: readonly boolean[]
  ): TensorPass => ({
    name,
    template: [headDim, valueDim, parts, step, ...which],
    planes: ["batch", planes],
    tile: [size, rowsOf(parts)],
    sharedBytes: tileBytes([rowsOf(parts) + 2 * step, headDim], [rowsOf(parts) + 2 * step, valueDim]),
  });
  const over = (...which: readonly boolean[]): TensorPass =>
    pass("attentionKeyGradients", ofKeys, "seqK", "kvHeads", ...which);
  const passes = [
    pass("attentionQueryGradients", ofQueries, "seqQ", "heads"),
    ...isSplit ? [over(true, false), over(false, true)] : [over(true, true)],
  ];
  return { headDim, valueDim, passes, file: "flash_backward", scratch: ["batch", "heads", "seqQ"] };
}

/** Kernels with functions for tensor cores: a call uses the first form that is large enough for its dims. */
export const TENSOR_FORMS: { readonly [K in KernelName]?: readonly TensorForm[] } = {
  attention: [
    forward(64, 64, 2, 32),
    forward(96, 96, 2, 32),
    forward(128, 128, 2, 16),
    forward(192, 128, 1, 32),
    forward(256, 256, 1, 32),
  ],
  attentionBackward: [
    backward(64, 64, [2, 32], [1, 64]),
    backward(96, 96, [1, 32], [1, 32]),
    backward(128, 128, [1, 32], [1, 32]),
    backward(192, 128, [1, 32], [1, 16]),
    backward(256, 256, [1, 16], [1, 16], true),
  ],
};

/** The forms of a kernel; empty if it has no functions for tensor cores. */
export function tensorFormsOf(kernel: string): readonly TensorForm[] {
  return Object.entries(TENSOR_FORMS).find(([name]) => name === kernel)?.[1] ?? [];
}

export function formName(kernel: string, { headDim, valueDim }: TensorForm): string {
  return headDim === valueDim ? `${kernel}${headDim}` : `${kernel}${headDim}x${valueDim}`;
}

/** Name of a pass's entry point before its dtypes: forms are compiled separately, their passes together. */
export function passName(kernel: string, form: TensorForm, pass: TensorPass): string {
  return form.passes.length === 1 ? formName(kernel, form) : `${formName(kernel, form)}_${form.passes.indexOf(pass)}`;
}
