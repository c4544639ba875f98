/**
 * Which elements of a tensor a rank keeps: boxes of the whole tensor's shape, dense and one after another in memory. FSDP's cuts
 * are ranges of the row-major whole, each at most 2·ndim − 1 boxes; other ways of cutting are boxes as well, so that
 * checkpoints and initialization read one description.
 *
 * @module
 */
import { numelOf, type Shape } from "../shape.ts";

/** A range of indices in every dim. */
export interface Box {
  /** First index in every dim. */
  readonly offsets: readonly number[];
  /** Number of indices in every dim. */
  readonly sizes: Shape;
}

/** The elements that a rank keeps of one tensor. */
export interface ShardLayout {
  /** Shape of the whole tensor. */
  readonly shape: Shape;
  /** In the order in which their elements lie in memory; none where the rank keeps nothing. */
  readonly boxes: readonly Box[];
  /** Number of elements kept. */
  readonly numel: number;
}

/** Elements that are neighbours both in the row-major whole and in the rank's memory. */
export interface ElementRun {
  /** First element, counted in the row-major whole. */
  readonly offset: number;
  readonly length: number;
  /** First element, counted in the rank's memory. */
  readonly local: number;
}

/** The layout of a rank that keeps everything. */
export function wholeLayout(shape: Shape): ShardLayout {
  return { shape, boxes: [{ offsets: shape.map(() => 0), sizes: shape }], numel: numelOf(shape) };
}

/**
 * The layout of a rank that keeps a range of the row-major whole, in the fewest boxes: one for whole rows, and up to two
 * more for each further dim in which the range begins or ends.
 */
export function rangeLayout(shape: Shape, offset: number, length: number): ShardLayout {
  const boxes: Box[] = [];
  divide(shape, offset, length, [], boxes);
  return { shape, boxes, numel: length };
}

/** Divides a range of the part of `shape` at the indices `prefix` into boxes. */
function divide(shape: Shape, offset: number, length: number, prefix: readonly number[], into: Box[]): void {
  if (length === 0) return;
  const rest = shape.slice(prefix.length + 1);
  if (prefix.length === shape.length) {
    into.push({ offsets: prefix, sizes: prefix.map(() => 1) });
    return;
  }
  const row = numelOf(rest);
  const end = offset + length;
  const firstWhole = Math.ceil(offset / row);
  const endWhole = Math.floor(end / row);
  if (firstWhole > endWhole) return divide(shape, offset % row, length, [...prefix, endWhole], into);
  divide(shape, offset % row, firstWhole * row - offset, [...prefix, firstWhole - 1], into);
  if (endWhole > firstWhole) {
    into.push({
      offsets: [...prefix, firstWhole, ...rest.map(() => 0)],
      sizes: [...prefix.map(() => 1), endWhole - firstWhole, ...rest],
    });
  }
  divide(shape, 0, end - endWhole * row, [...prefix, endWhole], into);
}

/** The runs of a box, counted in the row-major whole, in order: as few as there are. */
export function* runsOfBox(shape: Shape, { offsets, sizes }: Box): Generator<{ offset: number; length: number }> {
  // Dims behind the last one that the box does not span are contiguous with it.
  let inner = shape.length;
  while (inner > 0 && sizes[inner - 1] === shape[inner - 1]) inner--;
  const from = Math.max(0, inner - 1);
  const length = numelOf(sizes.slice(from));
  const walk = function* (dim: number, base: number): Generator<{ offset: number; length: number }> {
    const stride = numelOf(shape.slice(dim + 1));
    const [first, count] = [offsets[dim], sizes[dim]];
    if (first === undefined || count === undefined) return yield { offset: base, length };
    if (dim === from) return yield { offset: base + first * stride, length };
    for (let i = 0; i < count; i++) yield* walk(dim + 1, base + (first + i) * stride);
  };
  if (length > 0) yield* walk(0, 0);
}

/** The runs of a layout, in the order of the rank's memory; neighbouring ones are one. */
export function elementRuns({ shape, boxes }: ShardLayout): ElementRun[] {
  const runs: ElementRun[] = [];
  let local = 0;
  for (const box of boxes) {
    for (const { offset, length } of runsOfBox(shape, box)) {
      const last = runs.at(-1);
      if (last !== undefined && last.offset + last.length === offset) {
        runs[runs.length - 1] = { ...last, length: last.length + length };
      } else runs.push({ offset, length, local });
      local += length;
    }
  }
  return runs;
}
