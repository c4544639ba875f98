/**
 * Collectives that gradients flow through where the ranks of a context axis share the positions of each row, by the zigzag of
 * `positions.ts`: the positions of all ranks gathered, and a rank's positions of all heads exchanged for all positions of its heads
 * (DeepSpeed Ulysses: Jacobs et al. 2023).
 *
 * @module
 */
import { at } from "../at.ts";
import type { Transfer } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { devicePtr } from "../device/device.ts";
import { copyElements } from "../ops/convert.ts";
import type { ComputeOp, OpContext } from "../ops/op.ts";
import { type Layout, narrowed, threeSizes } from "../shape.ts";
import { applyOne } from "../tensor/apply.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RegionAttrs } from "./ops.ts";
import { zigzag } from "./positions.ts";

/** The layout of a rank's part in [ranks, batch, seq, width]. */
function partOf(ranks: Tensor, rank: number): Layout {
  const { shape: [, ...shape], strides: [, ...strides], offset } = narrowed(ranks.layout, 0, rank, 1);
  return { shape, strides, offset };
}

/** Copies between a row's positions in their order and the parts of all ranks, [ranks, batch, seq, width]. */
function copyParts(rows: Tensor, ranks: Tensor, { size }: ProcessGroup, from: "rows" | "ranks"): void {
  const [, seq] = threeSizes("gatherPositions", rows.shape);
  const width = seq / (2 * size);
  for (let rank = 0; rank < size; rank++) {
    const own = partOf(ranks, rank);
    for (const [i, part] of zigzag({ rank, size }).entries()) {
      const inOrder = rows.view(narrowed(rows.layout, 1, part * width, width));
      const ofRank = ranks.view(narrowed(own, 1, i * width, width));
      if (from === "rows") copyElements(ofRank, inOrder);
      else copyElements(inOrder, ofRank);
    }
  }
}

/** Memory for the parts of all ranks of [batch, seq of all, width]. */
function partsOfAll(context: OpContext, rows: Tensor, { size }: ProcessGroup): Tensor {
  const [batch, seq, width] = threeSizes("gatherPositions", rows.shape);
  return context.empty([size, batch, seq / size, width], rows.dtype);
}

const gatherPositionsOp: ComputeOp<RegionAttrs> = {
  name: "gatherPositions",
  infer: (inputs, { group }) =>
    inputs.map(({ shape, dtype }) => ({ shape: shape.with(1, at(shape, 1, "dim") * group.size), dtype })),
  forward(call) {
    const { group, unit } = call.attrs;
    const [own, rows] = [call.dense(call.input(0)), call.output(0)];
    const all = partsOfAll(call, rows, group);
    group.allGather(all.ptr, own.ptr, own.numel * own.dtype.byteLength, unit).wait();
    copyParts(rows, all, group, "ranks");
  },
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    const all = partsOfAll(call, grad, group);
    copyParts(grad, all, group, "rows");
    const out = call.out(0);
    const slices = Array.from({ length: group.size }, (_, rank) => ({ offset: rank * out.numel, length: out.numel }));
    group.reduceScatter(
      { src: all.ptr, dtype: all.dtype, slices, dst: out.ptr, dstDtype: out.dtype, accumulate: false },
      `gradients of ${unit}`,
    ).wait();
  },
};

/** The layout of a rank's heads in [batch, seq, heads of all]. */
function headsOf({ layout }: Tensor, { size }: ProcessGroup, rank: number): Layout {
  const width = at(layout.shape, 2, "dim") / size;
  return narrowed(layout, 2, rank * width, width);
}

/** Sends each rank its part of `sent`, and receives each rank's part for this one; both [ranks, batch, seq, width], dense. */
function sendParts({ device }: OpContext, sent: Tensor, received: Tensor, group: ProcessGroup, unit: string): void {
  const byteLength = sent.numel / group.size * sent.dtype.byteLength;
  const place = ({ ptr }: Tensor, rank: number) => devicePtr(ptr + rank * byteLength);
  device.copy(place(received, group.rank), place(sent, group.rank), byteLength);
  const transfers = Array.from({ length: group.size }, (_, peer) => peer).filter((peer) => peer !== group.rank)
    .flatMap((peer): Transfer[] => [
      { kind: "send", peer, ptr: place(sent, peer), byteLength },
      { kind: "receive", peer, ptr: place(received, peer), byteLength },
    ]);
  group.transfer(transfers, unit).wait();
}

/** Makes of this rank's positions [batch, part of seq, heads] all positions of its heads [batch, seq, part of heads]. */
function takeHeads(context: OpContext, own: Tensor, rows: Tensor, group: ProcessGroup, unit: string): void {
  const [sent, received] = [partsOfAll(context, rows, group), partsOfAll(context, rows, group)];
  for (let rank = 0; rank < group.size; rank++) {
    copyElements(sent.view(partOf(sent, rank)), own.view(headsOf(own, group, rank)));
  }
  sendParts(context, sent, received, group, unit);
  copyParts(rows, received, group, "ranks");
}

/** The other way round. */
function giveHeads(context: OpContext, own: Tensor, rows: Tensor, group: ProcessGroup, unit: string): void {
  const [sent, received] = [partsOfAll(context, rows, group), partsOfAll(context, rows, group)];
  copyParts(rows, sent, group, "rows");
  sendParts(context, sent, received, group, unit);
  for (let rank = 0; rank < group.size; rank++) {
    copyElements(own.view(headsOf(own, group, rank)), received.view(partOf(received, rank)));
  }
}

const takeHeadsOp: ComputeOp<RegionAttrs> = {
  name: "takeHeads",
  infer: (inputs, { group: { size } }) =>
    inputs.map(({ shape, dtype }) => {
      const [batch, seq, width] = threeSizes("takeHeads", shape);
      return { shape: [batch, seq * size, width / size], dtype };
    }),
  forward: (call) => takeHeads(call, call.input(0), call.output(0), call.attrs.group, call.attrs.unit),
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    giveHeads(call, call.out(0, grad.dtype), grad, group, `gradients of ${unit}`);
  },
};

const giveHeadsOp: ComputeOp<RegionAttrs> = {
  name: "giveHeads",
  infer: (inputs, { group: { size } }) =>
    inputs.map(({ shape, dtype }) => {
      const [batch, seq, width] = threeSizes("giveHeads", shape);
      return { shape: [batch, seq / size, width * size], dtype };
    }),
  forward: (call) => giveHeads(call, call.output(0), call.input(0), call.attrs.group, call.attrs.unit),
  backward(call) {
    const { group, unit } = call.attrs;
    const grad = call.grad(0);
    takeHeads(call, grad, call.out(0, grad.dtype), group, `gradients of ${unit}`);
  },
};

/** The rows [batch, seq, width] of which each rank has its positions. @param attrs `unit`: what they are, for messages */
export function gatherContext(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyOne(gatherPositionsOp, [x], attrs);
}

/**
 * All positions of this rank's heads [batch, seq, part of heads], for its positions of all heads [batch, part of seq, heads].
 *
 * @param attrs `unit`: what they are, for messages
 */
export function positionsToHeads(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyOne(takeHeadsOp, [x], attrs);
}

/** This rank's positions of all heads, for all positions of its heads. */
export function headsToPositions(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyOne(giveHeadsOp, [x], attrs);
}
