/**
 * Which calls run on tensor cores, by functions of their own: attention of 2-byte floats, whatever its masks, strides
 * and options. Attention of float32 runs as `attention.cu` has it, as tensor cores would cut its numbers off.
 *
 * A form of a kernel holds heads of up to so many dims, for which it is compiled. How many rows a warp takes is
 * chosen so that threads keep all sums in registers, and a block's tiles fit into 99 KiB, which every card from sm_80
 * on gives one. How many blocks of 128 threads run side by side registers limit to two, or to three where they
 * are few, and shared memory: of 228 KiB (sm_90, 100) to two or more; of 164 KiB (sm_80) to two or more, but to one of
 * heads of 256 dims and of `dq` of 192; of 100 KiB (sm_86, 89, 120) to one, but to two of the forward of 64.
 *
 * @module
 */
import type { DType } from "../../dtype.ts";
import type { Factor } from "../kernels/signature.ts";
import type { KernelName } from "../kernels/table.ts";

/** Whether calls of such an element type run on tensor cores, of kernels that have functions for them. */
export function runsOnTensorCores({ kind, byteLength }: DType): boolean {
  return kind === "float" && byteLength === NUMBER_BYTES;
}

/** Threads of a block of these functions: four warps. */
export const TENSOR_THREADS = 128;
/** Bytes of a number. */
const NUMBER_BYTES = 2;
/** Rows that a warp multiplies at once, and numbers after each row of a tile; see `tiles.cu`. */
const [PART, PAD] = [16, 8];
/** Warps of a block. */
const WARPS = 4;

/** One function of a form: a block for each tile of rows of each plane. */
export interface TensorPass {
  readonly name: string;
  /** What its template takes after the element type. */
  readonly template: readonly (number | boolean)[];
  /** How many planes there are: the product of sizes. */
  readonly planes: readonly Factor[];
  /** Which size a block has how many rows of. */
  readonly tile: readonly [size: string, of: number];
  /** Bytes of shared memory of a block. */
  readonly sharedBytes: number;
}

/** The functions of a call in order, for heads of up to so many dims. */
export interface TensorForm {
  readonly headDim: number;
  readonly valueDim: number;
  readonly passes: readonly TensorPass[];
  /** The file that the functions are in. */
  readonly file: string;
  /** Float32 that functions of a call leave for later ones: the product of sizes. */
  readonly scratch?: readonly Factor[];
}

/** Bytes of tiles, each of rows of so many dims. */
function tileBytes(...tiles: readonly (readonly [rows: number, dims: number])[]): number {
  return tiles.reduce((sum, [rows, dims]) => sum + NUMBER_BYTES * rows * (dims + PAD), 0);
}

/** Rows of a block whose warps have so many parts. */
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
type Sizes = readonly [parts: number, step: number];

/** The backward: sizes of the pass over queries and of that over keys, which may be one for `dk` and one for `dv`. */
function backward(headDim: number, valueDim: number, ofQueries: Sizes, ofKeys: Sizes, isSplit = false): TensorForm {
  const pass = (
    name: string,
    [parts, step]: Sizes,
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

/** Kernels with functions for tensor cores: of their forms a call takes the first that holds its dims. */
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

/** The forms of a kernel; none where it has no functions for tensor cores. */
export function tensorFormsOf(kernel: string): readonly TensorForm[] {
  return Object.entries(TENSOR_FORMS).find(([name]) => name === kernel)?.[1] ?? [];
}

/** What a form is called, of its kernel. */
export function formName(kernel: string, { headDim, valueDim }: TensorForm): string {
  return headDim === valueDim ? `${kernel}${headDim}` : `${kernel}${headDim}x${valueDim}`;
}

/** The name of a pass's entry point before its element types: forms are compiled apart, passes together. */
export function passName(kernel: string, form: TensorForm, pass: TensorPass): string {
  return form.passes.length === 1 ? formName(kernel, form) : `${formName(kernel, form)}_${form.passes.indexOf(pass)}`;
}
