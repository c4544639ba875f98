/**
 * Collectives that gradients flow through where a layer that is cut stands among layers that are not: each rank's slice of the last
 * dim is gathered behind it, or taken before it. Slices are chunks as `torch.chunk` makes them, so the last may be shorter.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { copyElements } from "../ops/convert.ts";
import type { ComputeOp, OpContext, ViewOp } from "../ops/op.ts";
import { type Layout, narrowed, numelOf, type Shape } from "../shape.ts";
import { chunkRange } from "../tensor/cut.ts";
import { applyOne, applyView } from "../tensor/apply.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RegionAttrs } from "./ops.ts";

/** Slices of a last dim of `width` elements. */
interface SliceAttrs extends RegionAttrs {
  readonly width: number;
}

/** The layout of a rank's slice of the last dim. */
function sliceOf(layout: Layout, { size }: ProcessGroup, rank: number): Layout {
  const last = layout.shape.length - 1;
  const { begin, length } = chunkRange(at(layout.shape, last, "dim"), rank, size);
  return narrowed(layout, last, begin, length);
}

/** Writes the slices of all ranks side by side. */
function gatherSlices(context: OpContext, into: Tensor, own: Tensor, group: ProcessGroup, unit: string): void {
  const { shape } = into;
  const last = shape.length - 1;
  const { length: longest } = chunkRange(at(shape, last, "dim"), 0, group.size);
  const padded: Shape = shape.with(last, longest);
  const mine = context.empty(padded, own.dtype);
  copyElements(mine.view(narrowed(mine.layout, last, 0, at(own.shape, last, "dim"))), own);
  const all = context.empty([group.size, ...padded], own.dtype);
  group.allGather(all.ptr, mine.ptr, numelOf(padded) * own.dtype.byteLength, unit).wait();
  for (let rank = 0; rank < group.size; rank++) {
    const slice = into.view(sliceOf(into.layout, group, rank));
    const { shape: [, ...shape], strides: [, ...strides], offset } = narrowed(all.layout, 0, rank, 1);
    const part = { shape, strides, offset };
    copyElements(slice, all.view(narrowed(part, last, 0, at(slice.shape, last, "dim"))));
  }
}

const gatherOp: ComputeOp<SliceAttrs> = {
  name: "gatherSlices",
  infer: (inputs, { width }) => inputs.map(({ shape, dtype }) => ({ shape: shape.with(-1, width), dtype })),
  forward(call) {
    const { group, unit } = call.attrs;
    gatherSlices(call, call.output(0), call.input(0), group, `output of '${unit}'`);
  },
  backward(call) {
    const { group } = call.attrs;
    const grad = call.grad(0);
    call.give(0, grad.view(sliceOf(grad.layout, group, group.rank)));
  },
};

const gatherForPartsOp: ComputeOp<SliceAttrs> = {
  ...gatherOp,
  name: "gatherForParts",
  backward(call) {
    const { group, unit } = call.attrs;
    const sum = call.empty(call.grad(0).shape, call.grad(0).dtype);
    copyElements(sum, call.grad(0));
    group.allReduce(sum.ptr, sum.numel, sum.dtype, { unit: `gradient of the output of '${unit}'` }).wait();
    call.give(0, sum.view(sliceOf(sum.layout, group, group.rank)));
  },
};

const sliceOp: ViewOp<RegionAttrs> = {
  name: "takeSlice",
  view: ({ layout }, { group }) => sliceOf(layout, group, group.rank),
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    gatherSlices(call, call.out(0, grad.dtype), grad, group, `gradient of the input of '${unit}'`);
  },
};

/** Elements of the last dim whose gradients are added. */
interface PartAttrs extends RegionAttrs {
  readonly begin: number;
}

const enterFromOp: ViewOp<PartAttrs> = {
  name: "enterFrom",
  view: ({ layout }) => layout,
  backward(call) {
    const { group, unit, begin } = call.attrs;
    const out = call.out(0, call.grad(0).dtype);
    copyElements(out, call.grad(0));
    const last = out.shape.length - 1;
    const part = out.view(narrowed(out.layout, last, begin, at(out.shape, last, "dim") - begin));
    const sum = call.empty(part.shape, part.dtype);
    copyElements(sum, part);
    group.allReduce(sum.ptr, sum.numel, sum.dtype, { unit: `gradient of the output of '${unit}'` }).wait();
    copyElements(part, sum);
  },
};

const shareOp: ComputeOp<ProcessGroup> = {
  name: "share",
  infer: (inputs) => inputs.map(({ shape, dtype }) => ({ shape, dtype })),
  forward(call) {
    const [x, out] = [call.dense(call.input(0)), call.output(0)];
    const factor = 1 / call.attrs.size;
    call.device.kernels.scale({ dtype: x.dtype, n: x.numel, factor, dst: out.ptr, src: x.ptr });
  },
  backward: (call) => call.give(0, call.grad(0)),
};

/** All ranks' slices of the last dim, side by side, which each rank goes on with alike. @param width of all slices together */
export function gather(x: Tensor, width: number, attrs: RegionAttrs): Tensor {
  return applyOne(gatherOp, [x], { ...attrs, width });
}

/** As {@link gather}, where each rank goes on with other elements of them, so that their gradients are added. */
export function gatherForParts(x: Tensor, width: number, attrs: RegionAttrs): Tensor {
  return applyOne(gatherForPartsOp, [x], { ...attrs, width });
}

/** This rank's slice of the last dim of what all ranks have alike. */
export function takeSlice(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyView(sliceOp, x, attrs);
}

/** The same tensor, of whose gradient the elements of the last dim from `begin` on are summed over the ranks. */
export function enterFrom(x: Tensor, begin: number, attrs: RegionAttrs): Tensor {
  return applyView(enterFromOp, x, { ...attrs, begin });
}

/**
 * Divides a replicated value by the number of ranks, so that a later sum over ranks restores it. The sum has the same gradient on all
 * ranks, which is the gradient of each share.
 */
export function share(x: Tensor, group: ProcessGroup): Tensor {
  return applyOne(shareOp, [x], group);
}
