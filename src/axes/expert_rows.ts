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

/** The number of rows that each expert gets. @param rows of all experts */
export function countsOf(ends: Tensor, rows: number, group: ProcessGroup): Int32Array {
  const counts = new Int32Array(ends.numel);
  if (group.kind === "dry") {
    // Nothing is routed in a dry run. It takes the memory of the rank that gets all rows of all ranks.
    counts[group.rank * counts.length / group.size] = rows;
    return counts;
  }
  ends.device.copyOut(new Uint8Array(counts.buffer), ends.ptr);
  let before = 0;
  return counts.map((end) => {
    const count = end - before;
    before = end;
    return count;
  });
}

/** Adjacent rows of one expert that this rank exchanges with a peer. */
interface Segment {
  readonly peer: number;
  /** Place of the first row, among the rows of this rank's tokens or of its experts. */
  readonly first: number;
  readonly rows: number;
}

/** Adjacent rows of one expert that stay on this rank. */
interface KeptRows {
  /** Place of the first row among the rows of this rank's tokens, which lie by expert. */
  readonly ofTokens: number;
  /** Place of the first row among the rows of this rank's experts. */
  readonly ofExperts: number;
  readonly rows: number;
}

/** The ranks that rows of this rank go to. Segments stand in the order of the experts. */
export interface RowPlan {
  /** Rows of this rank's tokens whose experts other ranks have. */
  readonly given: readonly Segment[];
  /** Rows of this rank's experts that come from other ranks. */
  readonly taken: readonly Segment[];
  /** Rows of this rank's tokens whose experts it has itself. */
  readonly kept: readonly KeptRows[];
  /** Number of rows of this rank's tokens. */
  readonly tokenRows: number;
  /** Number of rows of this rank's experts. */
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
  const [given, taken, kept]: [Segment[], Segment[], KeptRows[]] = [[], [], []];
  const ends = new Int32Array(share);
  let [tokenRows, expertRows] = [0, 0];
  for (const [expert, rows] of own.entries()) {
    const owner = Math.floor(expert / share);
    if (owner !== rank && rows > 0) given.push({ peer: owner, first: tokenRows, rows });
    for (const [peer, theirs] of owner === rank ? counts.entries() : []) {
      const rows = at(theirs, expert, "number of rows");
      if (peer === rank) kept.push({ ofTokens: tokenRows, ofExperts: expertRows, rows });
      else if (rows > 0) taken.push({ peer, first: expertRows, rows });
      expertRows += rows;
    }
    if (owner === rank) ends[expert - rank * share] = expertRows;
    tokenRows += rows;
  }
  return { given, taken, kept, tokenRows, expertRows, ends };
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
  const [, width] = twoSizes("exchangeRows", from.shape);
  const rowBytes = width * from.dtype.byteLength;
  const place = ({ ptr }: Tensor, row: number): DevicePtr => devicePtr(ptr + row * rowBytes);
  for (const { ofTokens, ofExperts, rows } of plan.kept) {
    const [source, target] = toExperts ? [ofTokens, ofExperts] : [ofExperts, ofTokens];
    if (rows > 0) device.copy(place(to, target), place(from, source), rows * rowBytes);
  }
  const messages = (kind: Transfer["kind"], tensor: Tensor, segments: readonly Segment[]): Transfer[] =>
    segments.map(({ peer, first, rows }) => ({ kind, peer, ptr: place(tensor, first), byteLength: rows * rowBytes }));
  const [sent, received] = toExperts ? [plan.given, plan.taken] : [plan.taken, plan.given];
  const transfers = [...messages("send", from, sent), ...messages("receive", to, received)];
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

/** The experts' outputs, at the ranks of the tokens. */
export function fromExperts(rows: Tensor, plan: RowPlan, group: ProcessGroup, name: string): Tensor {
  return applyOne(exchangeRowsOp, [rows], { group, plan, unit: `rows from '${name}'`, toExperts: false });
}
