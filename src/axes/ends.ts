/**
 * What layers that are cut do at their ends, so that all ranks go on with the same values: sums over the axis, slices gathered and
 * taken, by their styles.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { SelfAttention } from "../nn/attention.ts";
import { Embedding } from "../nn/embedding.ts";
import { Experts } from "../nn/experts.ts";
import { LanguageModelHead } from "../nn/head.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import { Linear, type LinearEnds } from "../nn/linear.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import { LayerNorm, RMSNorm } from "../nn/norm.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { CutModule } from "./checks.ts";
import { enter, leave, type RegionAttrs } from "./ops.ts";
import { ownExperts } from "./own_experts.ts";
import type { SummedRows } from "./sequence.ts";
import { leavePositions } from "./sequence_ops.ts";
import { SharedInputs } from "./shared_inputs.ts";
import { enterFrom, gather, gatherForParts, share, takeSlice } from "./slices.ts";
import type { Style } from "./styles.ts";
import { headOutput, lookUp } from "./vocabulary.ts";

/**
 * Adds the collectives at both ends of each cut layer.
 *
 * @param rows of the module, where layers around it have parts of them, and its linear layers sum by themselves
 * @returns what ends it
 */
export function joinEnds(
  { name, module, parts }: CutModule,
  group: ProcessGroup,
  rows?: SummedRows,
): readonly HookHandle[] {
  const inputs = new SharedInputs({ group, unit: name });
  const ends = Array.from(parts, ([target, style]): readonly HookHandle[] => {
    const unit = target.fqn ?? name;
    if (target instanceof Linear) {
      const ends = linearEnds(target, style, module, inputs, { group, unit });
      return [
        target.setEnds(rows === undefined ? ends : withRows(ends, rows, { group, unit })),
        ...joinAdapter(target, style, ends, { group, unit }),
      ];
    }
    if (target instanceof RMSNorm || target instanceof LayerNorm) {
      // Also of norms that each rank applies to its own positions.
      return [target.shareParameters((parameter) => enter(parameter, { group, unit }))];
    }
    if (target instanceof Embedding) {
      return [target.setBody({ compute: (_, [ids]) => lookUp(target, ids, { group, unit }) })];
    }
    if (target instanceof LanguageModelHead) {
      return [target.setBody({ compute: (forward, args) => headOutput(target, forward, args, { group, unit }) })];
    }
    return target instanceof Experts ? joinExperts(target, style, group, unit) : [];
  });
  return [inputs.follow(module), ...ends.flat()];
}

/** The two ends of a linear layer. */
function linearEnds(
  layer: Linear,
  style: Style,
  parent: Module,
  inputs: SharedInputs,
  attrs: RegionAttrs,
): LinearEnds {
  const enter = (x: Tensor) => inputs.enter(x);
  const width = at(layer.weight.globalShape, layer.outDim, "dim");
  switch (style) {
    case "rowwise":
      return { leave: (y) => leave(y, attrs) };
    case "rowwise_split_input":
      return { enter: (x) => takeSlice(x, attrs), leave: (y) => leave(y, attrs) };
    case "colwise_gather_output":
      return { enter, gather: (y) => gather(y, width, attrs) };
    case "mla_kv_a_proj": {
      if (!(parent instanceof LatentAttention)) return {};
      const { keyValueRank } = parent.options;
      return { gather: (y) => enterFrom(y, keyValueRank, attrs) };
    }
    default: {
      const own = parent instanceof SelfAttention ? copiedHead(layer, parent, attrs.group) : undefined;
      if (own === undefined) return { enter };
      return { enter, gather: (y) => gatherForParts(y, width, attrs).narrow(-1, own.begin, own.width) };
    }
  }
}

/**
 * Joins the adapter of a layer that is cut, so that it gives the full output where the layer does, and this rank's slice where the
 * layer gives that. The narrow rows between A and B are the same on all ranks:
 * - where inputs are sliced, they are summed over the ranks in the forward;
 * - where outputs are sliced, their gradient is summed over the ranks in the backward.
 */
function joinAdapter(
  { adapter }: Linear,
  style: Style,
  { gather }: LinearEnds,
  { group, unit }: RegionAttrs,
): readonly HookHandle[] {
  if (adapter === undefined) return [];
  const { loraA, loraB } = adapter;
  switch (style) {
    case "rowwise":
      return [loraA.setEnds({ leave: (narrow) => leave(narrow, { group, unit: loraA.fqn ?? unit }) })];
    case "colwise":
    case "packed_colwise": {
      const take = (narrow: Tensor): Tensor => enter(narrow, { group, unit: loraB.fqn ?? unit });
      return [loraB.setEnds({ enter: take, ...gather === undefined ? {} : { gather } })];
    }
    case "mla_kv_a_proj":
      return gather === undefined ? [] : [loraB.setEnds({ gather })];
    default: // Inputs and outputs are unsharded: all ranks compute the same.
      return [];
  }
}

/** The ends of a layer that takes whole rows, and gives this rank's positions of a sum, while the layers around it have parts of rows. */
function withRows({ enter: take, leave, gather }: LinearEnds, rows: SummedRows, attrs: RegionAttrs): LinearEnds {
  return {
    ...take === undefined ? {} : { enter: (x) => rows.isActive ? x : take(x) },
    ...leave === undefined ? {} : { leave: (y) => rows.isActive ? leavePositions(y, attrs) : leave(y) },
    // A rank adds the bias to its positions, so its gradient is a part of a sum.
    share: (bias) => rows.isActive ? enter(bias, attrs) : bias,
    ...gather === undefined ? {} : { gather },
  };
}

/** The head of keys or values that a rank computes with where there are fewer of them than ranks. */
function copiedHead(
  layer: Linear,
  { kProj, vProj, options: { numHeads, numKvHeads, headDim } }: SelfAttention,
  { rank, size }: ProcessGroup,
): { readonly begin: number; readonly width: number } | undefined {
  if ((layer !== kProj && layer !== vProj) || numKvHeads >= size) return undefined;
  const head = Math.floor((rank * numHeads / size) / (numHeads / numKvHeads));
  return { begin: head * headDim, width: headDim };
}

/** Has experts add up what each rank makes by its own experts, or of its part of the width of each. */
function joinExperts(experts: Experts, style: Style, group: ProcessGroup, unit: string): readonly HookHandle[] {
  const attrs = { group, unit };
  const body = experts.setBody({
    compute(forward, [x, { experts: chosen, weights }]) {
      const routing = { experts: chosen, weights: enter(weights, { group, unit: `${unit}.weights` }) };
      return leave(forward(enter(x, attrs), routing), attrs);
    },
  });
  const isDivided = style === "ep_dispatch_experts";
  return [body, isDivided ? experts.addExchange(ownExperts(group)) : experts.shareBias((bias) => share(bias, group))];
}
