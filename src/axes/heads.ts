/**
 * Layers of which each rank of a context axis computes some heads, or channels, of whole rows: it exchanges its positions of all heads
 * for all positions of its heads, computes them as one rank does, and exchanges the outputs back. So no state goes from rank to rank, and
 * outputs have the bits of one rank. Layers that pass a state along a row do so always, and attention if it is asked to (DeepSpeed
 * Ulysses: Jacobs et al. 2023).
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import { SelfAttention } from "../nn/attention.ts";
import { CausalConv } from "../nn/causal_conv.ts";
import { attention, type AttentionFunction, cat, causalConv, gatedDeltaRule } from "../nn/functional.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { gatherContext, headsToPositions, positionsToHeads } from "./context_ops.ts";

/**
 * Refuses a layer whose heads or channels the ranks do not divide.
 *
 * @param options `exchangesAttention`: true if attention exchanges heads too
 * @throws {ArgumentError} naming it
 */
export function requireDivisibleHeads(
  name: string,
  module: Module,
  size: number,
  { exchangesAttention }: { readonly exchangesAttention: boolean },
): void {
  const attends = exchangesAttention && (module instanceof SelfAttention || module instanceof LatentAttention);
  const counts: readonly (readonly [number, string])[] = attends
    ? headCounts(module)
    : module instanceof GatedDeltaNet
    ? [[module.options.keyHeads, "heads of keys"], [module.options.valueHeads, "heads of values"]]
    : module instanceof CausalConv
    ? [[at(module.weight.shape, 0, "dim"), "channels"]]
    : [];
  for (const [count, what] of counts) requireDivisor(count, what, name, size);
}

function headCounts({ options }: SelfAttention | LatentAttention): readonly (readonly [number, string])[] {
  const counts: readonly (readonly [number, string])[] = [[options.numHeads, "heads"]];
  return "numKvHeads" in options ? [...counts, [options.numKvHeads, "heads of keys and values"]] : counts;
}

function requireDivisor(count: number, what: string, name: string, size: number): void {
  if (count % size === 0) return;
  throw new ArgumentError(
    `Cannot share positions over a context axis: the ${count} ${what} of '${name}' are no multiple of ${size} ranks, which exchange them ` +
      "for positions; give an axis whose size divides them",
  );
}

/**
 * Attention of this rank's heads over all positions of each row.
 *
 * @throws {ArgumentError} in a call, if ranks do not divide its heads, of which a tensor axis may have left this rank a part
 */
export function attentionOfHeads(group: ProcessGroup, name: string): AttentionFunction {
  return (q, k, v, { heads, kvHeads, ...options }, keyMask, sinks, documentStarts) => {
    const { size, rank } = group;
    requireDivisor(heads, "heads", name, size);
    requireDivisor(kvHeads, "heads of keys and values", name, size);
    const taken = exchangeAll([q, k, v], group, `heads of '${name}'`);
    const [own, count] = [(i: number): Tensor => at(taken, i, "part"), heads / size];
    const heard = attention(
      ...[own(0), own(1), own(2)] as const,
      { ...options, heads: count, kvHeads: kvHeads / size },
      keyMask,
      sinks?.narrow(0, rank * count, count),
      allStarts(documentStarts, group, name),
    );
    return headsToPositions(heard, { group, unit: `output of the heads of '${name}'` });
  };
}

/** Beginnings of documents of all positions, from those of this rank's positions. */
function allStarts(starts: Tensor | undefined, group: ProcessGroup, name: string): Tensor | undefined {
  if (starts === undefined) return undefined;
  return noGrad(() => gatherContext(starts.unsqueeze(-1), { group, unit: `documents of '${name}'` }).squeeze(-1));
}

/** Exchanges several tensors of one dtype at once: all positions of this rank's part of each. */
function exchangeAll(tensors: readonly Tensor[], group: ProcessGroup, unit: string): readonly Tensor[] {
  const widths = tensors.map(({ shape }) => at(shape, 2, "dim") / group.size);
  const byRank = Array.from({ length: group.size }, (_, rank) => {
    return tensors.map((tensor, i) => tensor.narrow(-1, rank * at(widths, i, "width"), at(widths, i, "width")));
  });
  return positionsToHeads(cat(byRank.flat(), -1), { group, unit }).split(widths, -1);
}

/** Has a layer of the gated delta rule compute whole rows of this rank's heads. @returns ends that */
export function joinRule(layer: GatedDeltaNet, group: ProcessGroup, name: string): HookHandle {
  return layer.setRule((q, k, v, decay, beta, { keyHeads, valueHeads, scale }, documentStarts) => {
    const taken = exchangeAll([q, k, v, beta], group, `heads of '${name}'`);
    const own = (i: number): Tensor => at(taken, i, "part");
    const ownDecay = positionsToHeads(decay, { group, unit: `decays of '${name}'` });
    const { size } = group;
    const attrs = { keyHeads: keyHeads / size, valueHeads: valueHeads / size, scale, state: undefined };
    const starts = allStarts(documentStarts, group, name);
    const read = gatedDeltaRule(own(0), own(1), own(2), ownDecay, own(3), attrs, starts);
    return headsToPositions(read, { group, unit: `output of the heads of '${name}'` });
  });
}

/** Has a convolution compute whole rows of this rank's channels. @returns ends that */
export function joinConvolution(layer: CausalConv, group: ProcessGroup, name: string): HookHandle {
  return layer.setBody({
    compute(forward, [x, context]) {
      const { pastKeyValues, documentStarts } = context;
      if (pastKeyValues !== undefined) return forward(x, context);
      const { weight, bias } = layer;
      const count = at(weight.shape, 0, "dim") / group.size;
      const rows = positionsToHeads(x, { group, unit: `channels of '${name}'` });
      const own = causalConv(
        rows,
        weight.narrow(0, group.rank * count, count),
        allStarts(documentStarts, group, name),
      );
      const summed = bias === undefined ? own : own.add(bias.narrow(0, group.rank * count, count));
      return headsToPositions(summed, { group, unit: `output of the channels of '${name}'` });
    },
  });
}
