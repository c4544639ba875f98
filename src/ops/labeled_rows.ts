/**
 * Rows of a loss that count: a label that is ignored gives no loss and no gradient, so its row of logits need not be computed.
 *
 * Note [Bits of labeled rows]: leaving rows out changes no bit of a loss or gradient.
 * - A product's rows do not depend on each other, unless it has fewer than {@link GROUP} of them.
 * - The gradient of the weight is a sum over rows, to which rows without a label add exact zeros. Products of a CPU add up
 *   {@link SUMMED_TOGETHER} rows of a chunk at a time, and in bfloat16 two neighbors at once. So rows are taken by whole groups, and the
 *   rows of each of those sums are multiplied by themselves.
 * - The losses are put back in their places before they are added up.
 *
 * @module
 */
import { at } from "../at.ts";
import { devicePtr } from "../device/device.ts";
import { type DType, float32, int32 } from "../dtype.ts";
import { matrixOf, numelOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ForwardCall, OpContext } from "./op.ts";

/** Rows that are taken together. */
const GROUP = 4;

/** Rows that a CPU's product adds up before it adds them to its output: `KC` of wasm/src/matmul.rs. */
const SUMMED_TOGETHER = 256;

/** Bytes by which memory is allocated. */
const ALIGNMENT = 256;

/** Rows that are summed together. */
interface RowRange {
  readonly start: number;
  readonly rows: number;
}

/** Rows of logits that exist at a time. */
export interface RowChunk extends RowRange {
  /** Its rows that are added to the gradient of the weight by a product of their own. */
  readonly sums: readonly RowRange[];
  /** Its rows that are added to the gradient of the bias at a time. */
  readonly biasSums: readonly RowRange[];
}

/** The rows that are computed, numbered anew in their order. */
export interface LabeledRows {
  /** The rows' places among all rows. */
  readonly places: Int32Array;
  /** For each of all rows its new number, or the count of computed rows. */
  readonly numbers: Int32Array;
  readonly chunks: readonly RowChunk[];
}

/** Chunks of all rows. */
export function chunksOfAll(rows: number, perChunk: number): readonly RowChunk[] {
  return Array.from({ length: Math.ceil(rows / perChunk) }, (_, i) => {
    const range = { start: i * perChunk, rows: Math.min(perChunk, rows - i * perChunk) };
    return { ...range, sums: [range], biasSums: [range] };
  });
}

/** Sizes of a loss. */
interface LossSizes {
  /** Rows of logits at a time where all are computed. */
  readonly perChunk: number;
  /** Columns of the logits that chunks are counted by. */
  readonly columns: number;
  /** Number of ids that a label may have. */
  readonly classes: number;
  readonly ignoreIndex: number;
  /** Matrices of logits. */
  readonly matrices: number;
}

/**
 * The rows that a loss need compute, where that is known and takes no more memory than all of them; undefined: all rows. Labels are read
 * in the memory of the host alone, as reading others would wait for the device.
 */
export function labeledRows<A>(
  call: ForwardCall<A>,
  hidden: Tensor,
  labels: Tensor,
  sizes: LossSizes,
): LabeledRows | undefined {
  const { perChunk, classes, ignoreIndex } = sizes;
  const { device } = call;
  const { numel: rows } = labels;
  const tail = rows % perChunk;
  if (device.traits.hostBase === undefined || rows < GROUP || (tail > 0 && tail < GROUP)) return undefined;
  const values = new Int32Array(rows);
  device.copyOut(new Uint8Array(values.buffer), labels.ptr);
  // A label out of range is a fault, which names its row.
  if (values.some((label) => label !== ignoreIndex && (label < 0 || label >= classes))) return undefined;
  const found = divided(values, ignoreIndex, perChunk);
  const isSound = found.chunks.every(({ rows }) => rows >= GROUP);
  return isSound && takesNoMore(call, hidden, rows, found, sizes) ? found : undefined;
}

/** Takes the groups with labels; as many chunks are joined as have no more rows than one that is full. */
function divided(labels: Int32Array, ignoreIndex: number, perChunk: number): LabeledRows {
  const numbers = new Int32Array(labels.length).fill(-1);
  const places: number[] = [];
  const chunks: { start: number; rows: number; sums: RowRange[]; biasSums: RowRange[] }[] = [];
  for (let chunk = 0; chunk < labels.length; chunk += perChunk) {
    const end = Math.min(chunk + perChunk, labels.length);
    const first = places.length;
    const sums: RowRange[] = [];
    for (let sum = chunk; sum < end; sum += SUMMED_TOGETHER) {
      const start = places.length;
      const stop = Math.min(sum + SUMMED_TOGETHER, end);
      for (let group = sum; group < stop; group += GROUP) {
        const next = Math.min(group + GROUP, stop);
        if (labels.subarray(group, next).every((label) => label === ignoreIndex)) continue;
        for (let row = group; row < next; row++) numbers[row] = places.push(row) - 1;
      }
      if (places.length > start) sums.push({ start, rows: places.length - start });
    }
    const rows = places.length - first;
    if (rows === 0) continue;
    const last = chunks.at(-1);
    if (last !== undefined && last.rows + rows <= perChunk) {
      last.rows += rows;
      last.sums.push(...sums);
      last.biasSums.push({ start: first, rows });
    } else chunks.push({ start: first, rows, sums, biasSums: [{ start: first, rows }] });
  }
  for (const [row, number] of numbers.entries()) if (number < 0) numbers[row] = places.length;
  return { places: Int32Array.from(places), numbers, chunks };
}

/** True if computing these rows takes no more memory than computing all, neither in the forward nor until the backward. */
function takesNoMore<A>(
  call: ForwardCall<A>,
  { shape, dtype }: { readonly shape: readonly number[]; readonly dtype: DType },
  rows: number,
  { places: { length: count }, chunks }: LabeledRows,
  { perChunk, columns, matrices }: LossSizes,
): boolean {
  const width = at(shape, shape.length - 1, "size of dim");
  const most = chunks.reduce((largest, { rows }) => Math.max(largest, rows), 0);
  const bytes = (numel: number, size = 4): number =>
    Math.max(ALIGNMENT, Math.ceil(numel * size / ALIGNMENT) * ALIGNMENT);
  const { byteLength } = dtype;
  const logits = (rows: number): number => matrices * bytes(rows * columns);
  const keptOfAll = call.needs(0) ? bytes(numelOf(shape), byteLength) : 0;
  const kept = call.needs(0) ? bytes((count + 1) * width, byteLength) + bytes(rows) : 0;
  // Places, numbers, labels, losses, and all losses.
  const vectors = 2 * bytes(count) + bytes(count + 1) + 2 * bytes(rows);
  return kept <= keptOfAll &&
    kept + vectors + logits(most) + bytes(most * width, byteLength) <= keptOfAll + bytes(rows) + logits(perChunk);
}

/** Rows that are computed, in device memory. */
export interface SelectedRows {
  /** Their labels. */
  readonly labels: Tensor;
  /** Room for their losses, and for a zero: one dim, as the losses of all rows. */
  readonly losses: Tensor;
  /** See {@link LabeledRows.numbers}. */
  readonly numbers: Tensor;
  /** Copies the hidden states of as many rows as `into` has, from the computed row `start` on. */
  gather(into: Tensor, start: number): void;
  /** The losses of all rows in their places. */
  lossesOfAll(): Tensor;
  /** Sets the row behind the computed ones to zeros. */
  endWithZeros(matrix: Tensor): void;
}

/** Copies the rows of a matrix with given numbers. */
export function lookUpRows({ device }: OpContext, into: Tensor, matrix: Tensor, numbers: Tensor): void {
  const { rows: vocab, cols } = matrixOf(matrix);
  const { dtype } = matrix;
  device.kernels.embedding({ dtype, n: numbers.numel, vocab, cols, y: into.ptr, w: matrix.ptr, ids: numbers.ptr });
}

/** Makes what the rows are computed from and into. */
export function selectRows<A>(
  call: ForwardCall<A>,
  hidden: Tensor,
  labels: Tensor,
  { places, numbers: ofAll }: LabeledRows,
): SelectedRows {
  const { device } = call;
  const count = places.length;
  const onDevice = (values: Int32Array): Tensor => {
    const made = call.empty([values.length], int32);
    device.copyIn(made.ptr, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    return made;
  };
  const [rows, numbers] = [onDevice(places), onDevice(ofAll)];
  const [own, losses] = [call.empty([count], int32), call.empty([count + 1], float32)];
  const column = losses.view({ shape: [count + 1, 1], strides: [1, 1], offset: losses.layout.offset });
  const sizes = {
    dtype: int32,
    outer: 1,
    n: labels.numel,
    m: count,
    inner: 1,
    strideOuter: 0,
    stride: 1,
    strideInner: 0,
  };
  device.kernels.gather({ ...sizes, dst: own.ptr, src: labels.ptr, index: rows.ptr });
  const endWithZeros = (matrix: Tensor): void => {
    const { dtype, ptr } = matrix;
    const { cols } = matrixOf(matrix);
    device.kernels.fill({ dtype, n: cols, value: 0, dst: devicePtr(ptr + count * cols * dtype.byteLength) });
  };
  endWithZeros(column);
  return {
    ...{ labels: own, losses, numbers, endWithZeros },
    gather: (into, start) => {
      const { rows: length } = matrixOf(into);
      lookUpRows(call, into, hidden, rows.view({ shape: [length], strides: [1], offset: rows.layout.offset + start }));
    },
    lossesOfAll: () => {
      const all = call.empty([numbers.numel], float32);
      lookUpRows(call, all, column, numbers);
      return all;
    },
  };
}
