/**
 * Rows of tokens between the ranks of an expert axis: each row goes to the rank that has its expert, and what the expert makes of it comes
 * back (GShard: Lepikhin et al. 2020, section 3.2). Ranks tell each other first how many rows each expert gets, so nothing is dropped or
 * padded, whatever the router chooses.
 *
 * Rows of an expert lie in the order of the ranks that they come from, so a sum over them does not depend on which rank has the expert.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Transfer } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import type { ComputeOp, OpContext } from "../ops/op.ts";
import { twoSizes } from "../shape.ts";
import { applyOne } from "../tensor/apply.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Adjacent rows that this rank exchanges with a peer, or keeps. */
interface Segment {
  readonly peer: number;
  /** Place of the first row among the rows of this rank's tokens, which lie by expert. */
  readonly ofTokens: number;
  /** Place of the first row among the rows of this rank's experts. */
  readonly ofExperts: number;
  readonly rows: number;
}

/** Which rows of this rank go where. */
export interface RowPlan {
  /** Rows of this rank's tokens that go to each rank, by expert. `ofExperts` counts where they stay on this rank. */
  readonly given: readonly Segment[];
  /** Rows of this rank's experts that come from each rank, by expert. */
  readonly taken: readonly Segment[];
  /** Rows of this rank's tokens. */
  readonly tokenRows: number;
  /** Rows of this rank's experts. */
  readonly expertRows: number;
  /** Ends of the rows of each of this rank's experts. */
  readonly ends: Int32Array;
}

/**
 * Plans the exchange of a call.
 *
 * @param counts for each rank, the number of its rows that go to each expert of the model
 * @param rank this rank; experts are divided evenly, in the order of the ranks
 */
export function planRows(counts: readonly Int32Array[], rank: number): RowPlan {
  const own = at(counts, rank, "rank");
  const share = own.length / counts.length;
  const countOf = (from: number, expert: number): number => at(counts, from, "rank")[expert] ?? NaN;
  const given: Segment[] = [];
  let tokenRows = 0;
  for (let expert = 0; expert < own.length; expert++) {
    const rows = countOf(rank, expert);
    if (rows > 0) given.push({ peer: Math.floor(expert / share), ofTokens: tokenRows, ofExperts: NaN, rows });
    tokenRows += rows;
  }
  const taken: Segment[] = [];
  const ends = new Int32Array(share);
  let expertRows = 0;
  for (let local = 0; local < share; local++) {
    for (let peer = 0; peer < counts.length; peer++) {
      const rows = countOf(peer, rank * share + local);
      if (rows > 0) taken.push({ peer, ofTokens: NaN, ofExperts: expertRows, rows });
      expertRows += rows;
    }
    ends[local] = expertRows;
  }
  const stay = taken.filter(({ peer }) => peer === rank).map(({ ofExperts }) => ofExperts);
  return {
    given: given.map((one) => one.peer === rank ? { ...one, ofExperts: stay.shift() ?? NaN } : one),
    ...{ taken, tokenRows, expertRows, ends },
  };
}

/** An exchange of rows, and the layer that it is for. */
interface ExchangeAttrs {
  readonly group: ProcessGroup;
  /** Name of the layer, for messages. */
  readonly unit: string;
  readonly plan: RowPlan;
  /** True if rows go from tokens to experts, false if they come back. */
  readonly toExperts: boolean;
}

/** Moves rows of one rank's tokens to the experts' ranks, or back. */
function moveRows(
  { device }: OpContext,
  { group, unit, plan, toExperts }: ExchangeAttrs,
  from: Tensor,
  to: Tensor,
): void {
  const { rank } = group;
  const [, width] = twoSizes("exchangeRows", from.shape);
  const rowBytes = width * from.dtype.byteLength;
  const place = ({ ptr }: Tensor, row: number): DevicePtr => devicePtr(ptr + row * rowBytes);
  const [tokens, experts] = toExperts ? [from, to] : [to, from];
  const transfers: Transfer[] = [];
  for (const { peer, ofTokens, ofExperts, rows } of plan.given) {
    if (peer !== rank) {
      const kind = toExperts ? "send" : "receive";
      transfers.push({ kind, peer, ptr: place(tokens, ofTokens), byteLength: rows * rowBytes });
    } else if (toExperts) device.copy(place(experts, ofExperts), place(tokens, ofTokens), rows * rowBytes);
    else device.copy(place(tokens, ofTokens), place(experts, ofExperts), rows * rowBytes);
  }
  for (const { peer, ofExperts, rows } of plan.taken) {
    if (peer === rank) continue;
    const kind = toExperts ? "receive" : "send";
    transfers.push({ kind, peer, ptr: place(experts, ofExperts), byteLength: rows * rowBytes });
  }
  if (transfers.length > 0) group.transfer(transfers, unit).wait();
}

/** [rows of tokens, width] → [rows of experts, width], or back. */
const exchangeRowsOp: ComputeOp<ExchangeAttrs> = {
  name: "exchangeRows",
  infer: (inputs, { plan, toExperts }) =>
    inputs.map(({ shape, dtype }) => {
      const [, width] = twoSizes("exchangeRows", shape);
      return { shape: [toExperts ? plan.expertRows : plan.tokenRows, width], dtype };
    }),
  forward: (call) => moveRows(call, call.attrs, call.dense(call.input(0)), call.output(0)),
  backward(call) {
    const { attrs, attrs: { unit, toExperts } } = call;
    const back = { ...attrs, unit: `gradient of ${unit}`, toExperts: !toExperts };
    moveRows(call, back, call.dense(call.grad(0)), call.out(0));
  },
};

/** Rows of this rank's tokens, at the ranks of their experts. */
export function toExperts(rows: Tensor, plan: RowPlan, group: ProcessGroup, name: string): Tensor {
  return applyOne(exchangeRowsOp, [rows], { group, plan, unit: `rows for '${name}'`, toExperts: true });
}

/** What the experts have made of them, at the ranks of the tokens. */
export function fromExperts(rows: Tensor, plan: RowPlan, group: ProcessGroup, name: string): Tensor {
  return applyOne(exchangeRowsOp, [rows], { group, plan, unit: `rows from '${name}'`, toExperts: false });
}
