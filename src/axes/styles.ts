/**
 * Styles: how a layer computes with a part of its weights, by transformers' names (PyTorch's `ColwiseParallel`, `RowwiseParallel`). Which
 * dims of which parameters a style cuts stands here; what is summed or gathered then, in `ends.ts`.
 *
 * @module
 */
import { didYouMean } from "../config/nearest.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { CausalConv } from "../nn/causal_conv.ts";
import { Embedding } from "../nn/embedding.ts";
import { Experts } from "../nn/experts.ts";
import { LanguageModelHead } from "../nn/head.ts";
import { Linear } from "../nn/linear.ts";
import type { Module } from "../nn/module.ts";
import { LayerNorm, RMSNorm } from "../nn/norm.ts";
import type { CutRule } from "../tensor/cut.ts";
import { Parameter } from "../tensor/parameter.ts";

/**
 * Names of the styles:
 * - `colwise`: a part of the outputs from all inputs;
 * - `rowwise`: added up over the axis, what each rank makes of its part of the inputs;
 * - `packed_colwise`: `colwise` of outputs that lie side by side, as gates and ups, each cut by itself;
 * - `colwise_gather_output`: `colwise`, and all ranks get all outputs; of a head, the loss from parts of the logits;
 * - `rowwise_split_input`: `rowwise` of inputs that all ranks have;
 * - `embedding_rowwise`: a part of the ids of a table;
 * - `replicated_with_grad_allreduce`: a norm that each rank applies to its own heads, whose gradients are added;
 * - `mla_kv_a_proj`: the projection to latent rows, whose turned part all heads share;
 * - `moe_tp_experts`: each rank computes a part of every expert, and the outputs are added up;
 * - `ep_dispatch_experts`: each rank computes some of the experts, whose weights are cut `grouped_gemm`, and the outputs are added up;
 * - `grouped_gemm`: the weights of some of the experts;
 * - `sequence_parallel`: a norm of which each rank computes its positions of every row.
 */
export const STYLES = [
  "colwise",
  "rowwise",
  "packed_colwise",
  "colwise_gather_output",
  "rowwise_split_input",
  "embedding_rowwise",
  "replicated_with_grad_allreduce",
  "mla_kv_a_proj",
  "moe_tp_experts",
  "ep_dispatch_experts",
  "grouped_gemm",
  "sequence_parallel",
] as const;
/** The way in which a layer is cut. */
export type Style = typeof STYLES[number];

/** Older names of styles in plans of transformers. */
const ALIASES = { colwise_rep: "colwise_gather_output", rowwise_rep: "rowwise_split_input" } as const;

/** Names of styles that plans may have: {@link STYLES}, and older names. */
export const STYLE_NAMES: readonly StyleName[] = [...STYLES, "colwise_rep", "rowwise_rep"];
/** A name of a style in a plan. */
export type StyleName = Style | "colwise_rep" | "rowwise_rep";

/** Styles of transformers that are not implemented yet. */
const LATER = [
  "ep_router",
  "packed_rowwise",
  "embedding_colwise",
  "local_colwise",
  "local_rowwise",
  "local_params",
  "all_reduce",
  "moe_identity_expert",
  "replicate",
];

/**
 * The style of a name.
 *
 * @param where what is to be cut, for messages
 * @throws {ArgumentError} if there is no such style, with the nearest name
 * @throws {UnsupportedError} if transformers has it, and it is not implemented yet
 */
export function styleOf(name: string, where: string): Style {
  const style = STYLES.find((style) => style === name) ?? new Map<string, Style>(Object.entries(ALIASES)).get(name);
  if (style !== undefined) return style;
  const known = `styles are ${STYLES.join(", ")}`;
  if (LATER.includes(name)) {
    throw new UnsupportedError(`Cannot cut '${where}' ${name}: that is not implemented yet; ${known}`);
  }
  throw new ArgumentError(`Cannot cut '${where}' ${name}: ${known}${didYouMean(name, STYLES)}`);
}

/** A target of a plan's style: a module, or a parameter of a module. */
export type CutTarget = Module | Parameter;

/** The dims of parameters that a style cuts. */
type Rules = readonly (readonly [Parameter, CutRule])[];

function withBias(bias: Parameter | undefined, rule: CutRule): Rules {
  return bias === undefined ? [] : [[bias, rule]];
}

/** Rules of a linear layer and of its adapter; undefined for a style that it cannot have. */
function cutRulesOfLinear(layer: Linear, style: Style): Rules | undefined {
  const own = cutRulesOfWeights(layer, style);
  const { adapter, packs } = layer;
  if (own === undefined || adapter === undefined) return own;
  const { loraA: { weight: a }, loraB: { weight: b } } = adapter;
  // The factor at the end that is cut is cut alike; the narrow rows between the two are whole on all ranks.
  if (style === "rowwise") return [...own, [a, { dim: 1 }]];
  const isPart = packs !== "unequal" && (style === "colwise" || style === "packed_colwise");
  return isPart ? [...own, [b, { dim: 0, packs }]] : own;
}

function cutRulesOfWeights({ weight, bias, outDim, packs, fqn = "" }: Linear, style: Style): Rules | undefined {
  const columns = (packs: number): Rules => [[weight, { dim: outDim, packs }], ...withBias(bias, { dim: 0, packs })];
  switch (style) {
    case "colwise":
    case "packed_colwise": {
      if (packs === "unequal") {
        throw new ArgumentError(
          `Cannot cut '${fqn}' ${style}: parts of unequal width lie side by side in its outputs; cut it colwise_gather_output, and ` +
            "the layer behind it rowwise_split_input",
        );
      }
      if (style === "packed_colwise" && packs === 1) {
        throw new ArgumentError(`Cannot cut '${fqn}' packed_colwise: its outputs are one part; cut it colwise`);
      }
      return columns(packs);
    }
    case "colwise_gather_output":
      return columns(1);
    case "rowwise":
    case "rowwise_split_input":
      return [[weight, { dim: 1 - outDim }]]; // the bias is added once, to the sum
    case "mla_kv_a_proj":
      return [];
    default:
      return undefined;
  }
}

/** Rules of one parameter of a module: experts' weights and biases, and sinks. */
function rulesOfParameter(parameter: Parameter, style: Style, parent: Module): Rules | undefined {
  if (parent instanceof Experts) {
    const { gateUpProj, gateUpProjBias, downProj, options: { layout = "outIn", activation } } = parent;
    if (style === "grouped_gemm") return [[parameter, { dim: 0 }]];
    const [out, width] = layout === "outIn" ? [1, 2] : [2, 1];
    if (parameter === downProj && style === "rowwise") return [[downProj, { dim: width }]];
    if (parameter !== gateUpProj || style !== "packed_colwise") return undefined;
    const packs = typeof activation === "string" ? 2 : 1; // interleaved gates and ups are one part
    return [[gateUpProj, { dim: out, packs }], ...withBias(gateUpProjBias, { dim: 1, packs })];
  }
  return parameter.shape.length === 1 && style === "colwise" ? [[parameter, { dim: 0 }]] : undefined;
}

/**
 * The dims of parameters that a style cuts of what a plan names.
 *
 * @param parent the module right above
 * @throws {ArgumentError} for a style that it cannot have
 */
export function cutRulesOf(target: CutTarget, style: Style, parent: Module): Rules {
  const rules = rulesOfTarget(target, style, parent);
  if (rules !== undefined) return rules;
  const kind = target instanceof Parameter ? `parameter of ${parent.constructor.name}` : target.constructor.name;
  throw new ArgumentError(`Cannot cut '${target.fqn ?? ""}' ${style}: no ${kind} is cut so`);
}

function rulesOfTarget(target: CutTarget, style: Style, parent: Module): Rules | undefined {
  if (target instanceof Parameter) return rulesOfParameter(target, style, parent);
  if (target instanceof Linear) return cutRulesOfLinear(target, style);
  if (target instanceof Embedding) return style === "embedding_rowwise" ? [[target.weight, { dim: 0 }]] : undefined;
  if (target instanceof LanguageModelHead) {
    if (style !== "colwise_gather_output") return undefined;
    return [[target.weight, { dim: 0 }], ...withBias(target.bias, { dim: 0 })];
  }
  if (target instanceof CausalConv) {
    if (style !== "colwise") return undefined;
    return [[target.weight, { dim: 0 }], ...withBias(target.bias, { dim: 0 })];
  }
  if (target instanceof RMSNorm || target instanceof LayerNorm) {
    return style === "replicated_with_grad_allreduce" || style === "sequence_parallel" ? [] : undefined;
  }
  return target instanceof Experts && (style === "moe_tp_experts" || style === "ep_dispatch_experts") ? [] : undefined;
}
