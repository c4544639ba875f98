/**
 * Which elements of a tensor lie where, as plans: runs of the row-major whole, the boxes that PyTorch's format wants of
 * them, and which rank writes what. Pure; every rank plans alike.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import { numelOf, type Shape } from "../shape.ts";

/** Contiguous elements of the row-major whole. */
export interface ElementRun {
  readonly offset: number;
  readonly length: number;
}

/** A run that is also a box: a range of indices in every dim. */
export interface Box {
  /** First index in every dim. */
  readonly offsets: readonly number[];
  /** Indices in every dim. */
  readonly shape: Shape;
  readonly run: ElementRun;
}

/** Elements that two runs share; of length 0 if none. */
export function intersection(a: ElementRun, b: ElementRun): ElementRun {
  const offset = Math.max(a.offset, b.offset);
  return { offset, length: Math.max(0, Math.min(a.offset + a.length, b.offset + b.length) - offset) };
}

/**
 * Divides a run into the fewest boxes, in order. A run of whole rows is one box; one that begins or ends inside a row of
 * dim 0 takes up to two more for each further dim.
 *
 * @param shape the whole tensor
 * @param run elements of it
 */
export function boxesOf(shape: Shape, run: ElementRun): Box[] {
  const boxes: Box[] = [];
  divide(shape, run, [], 0, boxes);
  return boxes;
}

/** Boxes of a run of the part of `shape` at the indices `prefix`, whose first element is `base` of the whole. */
function divide(shape: Shape, run: ElementRun, prefix: readonly number[], base: number, boxes: Box[]): void {
  if (run.length === 0) return;
  const dim = prefix.length;
  const row = numelOf(shape.slice(dim + 1));
  const rest = shape.slice(dim + 1);
  const inner = (index: number, offset: number, length: number): void =>
    divide(shape, { offset, length }, [...prefix, index], base + index * row, boxes);
  if (dim === shape.length) {
    boxes.push({ offsets: prefix, shape: prefix.map(() => 1), run: { offset: base, length: 1 } });
    return;
  }
  let { offset, length } = run;
  if (offset % row !== 0) {
    const head = Math.min(length, row - offset % row);
    inner(Math.floor(offset / row), offset % row, head);
    offset += head;
    length -= head;
  }
  const rows = Math.floor(length / row);
  if (rows > 0) {
    boxes.push({
      offsets: [...prefix, offset / row, ...rest.map(() => 0)],
      shape: [...prefix.map(() => 1), rows, ...rest],
      run: { offset: base + offset, length: rows * row },
    });
    offset += rows * row;
    length -= rows * row;
  }
  if (length > 0) inner(offset / row, 0, length);
}

/** A tensor of which ranks hold runs. */
export interface HeldTensor {
  readonly name: string;
  readonly shape: Shape;
  /** What each rank holds, by rank. */
  readonly held: readonly ElementRun[];
}

/** Who writes a run. */
export interface Writer {
  readonly rank: number;
  readonly run: ElementRun;
}

/**
 * Chooses one writer for every run: what several ranks hold (replicas) is written by the one with the least to write.
 *
 * @returns for each tensor, in the order given, its writers in the order of the elements
 * @throws {InternalError} if the ranks together do not hold a tensor exactly
 */
export function planWriters(tensors: readonly HeldTensor[], world: number): readonly (readonly Writer[])[] {
  const load = new Array<number>(world).fill(0);
  return tensors.map(({ name, shape, held }) => {
    const writers: Writer[] = [];
    const runs = held.map((run, rank) => ({ run, rank })).filter(({ run }) => run.length > 0);
    runs.sort((a, b) => a.run.offset - b.run.offset || a.run.length - b.run.length || a.rank - b.rank);
    let end = 0;
    for (let i = 0; i < runs.length;) {
      const run = runs[i]?.run ?? { offset: 0, length: 0 };
      const holders: number[] = [];
      for (; runs[i]?.run.offset === run.offset && runs[i]?.run.length === run.length; i++) {
        holders.push(runs[i]?.rank ?? 0);
      }
      const rank = holders.reduce((best, other) => ((load[other] ?? 0) < (load[best] ?? 0) ? other : best));
      load[rank] = (load[rank] ?? 0) + run.length;
      if (run.offset !== end) {
        throw new InternalError(`ranks hold '${name}' up to element ${end}, then from ${run.offset}`);
      }
      end += run.length;
      writers.push({ rank, run });
    }
    const numel = numelOf(shape);
    if (end !== numel) throw new InternalError(`ranks hold ${end} of the ${numel} elements of '${name}'`);
    return writers;
  });
}
