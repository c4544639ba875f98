/**
 * Collectives that gradients flow through between layers that compute with whole rows and layers of which each rank has a part of every
 * row: consecutive positions, in chunks as `torch.chunk` makes them, so the last ranks may have fewer, or none.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { copyElements } from "../ops/convert.ts";
import type { ComputeOp, OpContext, ViewOp } from "../ops/op.ts";
import { type Layout, narrowed, numelOf, threeSizes } from "../shape.ts";
import { applyOne, applyView } from "../tensor/apply.ts";
import { chunkRange } from "../tensor/cut.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RegionAttrs } from "./ops.ts";

/** The layout of a rank's positions in [batch, seq, width]. */
function positionsOf(layout: Layout, { size }: ProcessGroup, rank: number): Layout {
  const { begin, length } = chunkRange(at(layout.shape, 1, "dim"), rank, size);
  return narrowed(layout, 1, begin, length);
}

/** True if the parts of all ranks, one after the other, are the rows. */
function liesInOrder({ shape }: Tensor, { size }: ProcessGroup): boolean {
  const [batch, seq] = threeSizes("sequence parallelism", shape);
  return batch === 1 && seq % size === 0;
}

/** Gathers the positions of all ranks, [batch, part of seq, width], into rows [batch, seq, width]. */
function gatherRows(context: OpContext, rows: Tensor, own: Tensor, group: ProcessGroup, unit: string): void {
  const { dtype } = own;
  if (liesInOrder(rows, group)) {
    const dense = context.dense(own);
    group.allGather(rows.ptr, dense.ptr, dense.numel * dtype.byteLength, unit).wait();
    return;
  }
  const longest = positionsOf(rows.layout, group, 0).shape;
  const mine = context.empty(longest, dtype);
  copyElements(mine.view(narrowed(mine.layout, 1, 0, at(own.shape, 1, "dim"))), own);
  const all = context.empty([group.size, ...longest], dtype);
  group.allGather(all.ptr, mine.ptr, numelOf(longest) * dtype.byteLength, unit).wait();
  for (let rank = 0; rank < group.size; rank++) {
    const target = rows.view(positionsOf(rows.layout, group, rank));
    const { shape: [, ...shape], strides: [, ...strides], offset } = narrowed(all.layout, 0, rank, 1);
    copyElements(target, all.view(narrowed({ shape, strides, offset }, 1, 0, at(target.shape, 1, "dim"))));
  }
}

/** Sums rows [batch, seq, width] over the ranks, of which each keeps its positions. */
function sumRows(context: OpContext, own: Tensor, rows: Tensor, group: ProcessGroup, unit: string): void {
  const [batch, seq, width] = threeSizes("sequence parallelism", rows.shape);
  const slices = Array.from({ length: group.size }, (_, rank) => {
    const { begin, length } = chunkRange(seq, rank, group.size);
    return { offset: batch * begin * width, length: batch * length * width };
  });
  const src = batch === 1 ? context.dense(rows) : context.empty([rows.numel], rows.dtype);
  for (const [rank, { offset }] of batch === 1 ? [] : slices.entries()) {
    const part = rows.view(positionsOf(rows.layout, group, rank));
    const length = at(part.shape, 1, "dim");
    copyElements(src.view({ shape: part.shape, strides: [length * width, width, 1], offset }), part);
  }
  const sum = { src: src.ptr, dtype: rows.dtype, slices, dst: own.ptr, dstDtype: own.dtype, accumulate: false };
  group.reduceScatter(sum, unit).wait();
}

const takeOp: ViewOp<RegionAttrs> = {
  name: "takePositions",
  view: ({ layout }, { group }) => positionsOf(layout, group, group.rank),
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    gatherRows(call, call.out(0, grad.dtype), grad, group, `gradient of the input of '${unit}'`);
  },
};

/** A gather of positions. */
interface GatherAttrs extends RegionAttrs {
  /** Positions of all ranks. */
  readonly seq: number;
  /** True if each rank's gradient of the rows is a part of a sum; false if all ranks have the same gradient. */
  readonly sumsGradients: boolean;
}

const gatherOp: ComputeOp<GatherAttrs> = {
  name: "gatherRows",
  infer: (inputs, { seq }) => inputs.map(({ shape, dtype }) => ({ shape: shape.with(1, seq), dtype })),
  forward(call) {
    const { group, unit } = call.attrs;
    gatherRows(call, call.output(0), call.input(0), group, `input of '${unit}'`);
  },
  backward(call) {
    const { group, unit, sumsGradients } = call.attrs;
    const grad = call.grad(0);
    if (!sumsGradients) return call.give(0, grad.view(positionsOf(grad.layout, group, group.rank)));
    sumRows(call, call.out(0, grad.dtype), grad, group, `gradient of the input of '${unit}'`);
  },
};

const leaveOp: ComputeOp<RegionAttrs> = {
  name: "leaveRows",
  infer: (inputs, { group }) =>
    inputs.map(({ shape, dtype }) => {
      const { length } = chunkRange(at(shape, 1, "dim"), group.rank, group.size);
      return { shape: shape.with(1, length), dtype };
    }),
  forward(call) {
    const { group, unit } = call.attrs;
    sumRows(call, call.output(0), call.input(0), group, `output of '${unit}'`);
  },
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    gatherRows(call, call.out(0, grad.dtype), grad, group, `gradient of the output of '${unit}'`);
  },
};

/** This rank's positions of rows [batch, seq, width] that all ranks have alike. */
export function takePositions(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyView(takeOp, x, attrs);
}

/** The rows [batch, seq, width] of which each rank has its positions. */
export function gatherPositions(x: Tensor, attrs: GatherAttrs): Tensor {
  return applyOne(gatherOp, [x], attrs);
}

/** This rank's positions of the sum over the ranks of rows [batch, seq, width]. */
export function leavePositions(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyOne(leaveOp, [x], attrs);
}
