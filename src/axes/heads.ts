/**
 * Layers that pass a state along a row, where the ranks of a context axis share its positions: each rank exchanges its positions of all
 * heads, or channels, for all positions of its heads, computes them as one rank does, and exchanges the outputs back. So no state goes from
 * rank to rank, and outputs have the bits of one rank.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import { CausalConv } from "../nn/causal_conv.ts";
import { cat, causalConv, gatedDeltaRule } from "../nn/functional.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { gatherContext, headsToPositions, positionsToHeads } from "./context_ops.ts";

/**
 * Refuses a layer whose heads or channels the ranks do not divide.
 *
 * @throws {ArgumentError} naming it
 */
export function requireDivisibleHeads(name: string, module: Module, size: number): void {
  const counts: readonly (readonly [number, string])[] = module instanceof GatedDeltaNet
    ? [[module.options.keyHeads, "heads of keys"], [module.options.valueHeads, "heads of values"]]
    : module instanceof CausalConv
    ? [[at(module.weight.shape, 0, "dim"), "channels"]]
    : [];
  for (const [count, what] of counts) {
    if (count % size === 0) continue;
    throw new ArgumentError(
      `Cannot share positions over a context axis: the ${count} ${what} of '${name}' are no multiple of ${size} ranks, which exchange them ` +
        "for positions; give an axis whose size divides them",
    );
  }
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
