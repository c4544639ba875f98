/**
 * Experts divided over ranks that have the same tokens, as those of a tensor axis: each rank computes with its own experts for all tokens
 * that are routed to them, and what ranks make is added up. No row travels.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { int32 } from "../dtype.ts";
import type { ExpertExchange } from "../nn/experts.ts";
import { copyElements } from "../ops/convert.ts";
import type { ComputeOp } from "../ops/op.ts";
import { narrowed, twoSizes } from "../shape.ts";
import { applyOne } from "../tensor/apply.ts";
import { tensor } from "../tensor/create.ts";
import { countsOf } from "./expert_rows.ts";

/** Some adjacent rows of all. */
interface PlaceAttrs {
  readonly first: number;
  readonly rows: number;
}

/** [own rows, width] → [rows, width], zeros for the others. */
const placeRowsOp: ComputeOp<PlaceAttrs> = {
  name: "placeRows",
  infer: (inputs, { rows }) =>
    inputs.map(({ shape, dtype }) => ({ shape: [rows, twoSizes("placeRows", shape)[1]], dtype })),
  forward(call) {
    const [own, all] = [call.input(0), call.output(0)];
    call.device.kernels.fill({ dtype: all.dtype, n: all.numel, value: 0, dst: all.ptr });
    copyElements(all.view(narrowed(all.layout, 0, call.attrs.first, at(own.shape, 0, "dim"))), own);
  },
  backward(call) {
    const grad = call.grad(0);
    call.give(0, grad.view(narrowed(grad.layout, 0, call.attrs.first, at(call.spec(0).shape, 0, "dim"))));
  },
};

/** Computes with this rank's experts, a part of the group's. Rows of other ranks' experts become zeros. */
export function ownExperts(group: ProcessGroup): ExpertExchange {
  return (rows, ends, compute) => {
    const counts = countsOf(ends, at(rows.shape, 0, "dim"), group);
    const share = counts.length / group.size;
    const first = sum(counts.subarray(0, group.rank * share));
    let end = 0;
    const own = counts.slice(group.rank * share, (group.rank + 1) * share).map((count) => end += count);
    const made = compute(rows.narrow(0, first, end), tensor(rows.device, own, { dtype: int32 }));
    return applyOne(placeRowsOp, [made], { first, rows: at(rows.shape, 0, "dim") });
  };
}

function sum(counts: Int32Array): number {
  return counts.reduce((all, count) => all + count, 0);
}
