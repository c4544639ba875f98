/**
 * Checks that what a plan cuts of a module goes together. A cut that would silently compute something else is refused by name: heads
 * that do not divide, norms and dropout over parts, and plans that name only some of the layers that belong together.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { SelfAttention } from "../nn/attention.ts";
import { Dropout } from "../nn/dropout.ts";
import { Experts } from "../nn/experts.ts";
import { FeedForward, GatedFeedForward } from "../nn/feed_forward.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import { Indexer } from "../nn/indexer.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import { MixtureOfExperts } from "../nn/mixture_of_experts.ts";
import { Linear } from "../nn/linear.ts";
import type { Module } from "../nn/module.ts";
import type { CutTarget, Style } from "./styles.ts";

/** Members of one module that are to be cut. */
export interface CutModule {
  readonly name: string;
  readonly module: Module;
  /** The style of the module itself, where the plan names it. */
  readonly style: Style | undefined;
  readonly parts: ReadonlyMap<CutTarget, Style>;
}

/** Styles after which a rank has a part of what others have all of. */
const PARTIAL: readonly Style[] = ["colwise", "packed_colwise", "rowwise"];

const COLUMNS: readonly Style[] = ["colwise", "packed_colwise"];
const SUMMED_NORM: readonly Style[] = ["replicated_with_grad_allreduce"];

/** Members of a module that only go together, each with its styles. */
type Together = readonly (readonly [CutTarget | undefined, readonly Style[]])[];

/**
 * Refuses a cut of some members of a module.
 *
 * @param group the ranks of the axis
 * @throws {ArgumentError} for a plan that leaves out what belongs together, or heads that the ranks do not divide
 * @throws {UnsupportedError} for what is not implemented yet
 */
export function requireCuttable(cut: CutModule, group: ProcessGroup): void {
  const { size } = group;
  const { name, module, parts } = cut;
  const refuse = (what: string): never => {
    throw new UnsupportedError(`Cannot cut '${name}' over ${size} ranks: not implemented for ${what}`);
  };
  for (const [target, style] of parts) {
    const drops = target instanceof Linear && style === "rowwise" && (target.adapter?.loraDropout?.p ?? 0) > 0;
    if (drops) {
      refuse(`masks of an adapter's dropout over a part of the inputs of '${target.fqn}' (set it to 0)`);
    }
  }
  const partial = [...parts].filter(([, style]) => PARTIAL.includes(style));
  if (module instanceof Experts) return requireExperts(cut, group);
  if (partial.length === 0) return;
  if (module instanceof MixtureOfExperts || module instanceof GatedDeltaNet || module instanceof Indexer) {
    refuse(`parts of a ${module.constructor.name} that are not gathered`);
  }
  for (const [, child] of module.children()) {
    if (child instanceof Dropout && child.p > 0) {
      refuse("masks of dropout over a part (set it to 0, or cut colwise_gather_output and rowwise_split_input)");
    }
  }
  if (module instanceof SelfAttention) requireHeads(name, module, size, refuse);
  if (module instanceof LatentAttention) requireLatentHeads(name, module, size, refuse);
  requireTogether(name, belonging(module), parts);
}

/** Refuses heads that the ranks do not divide, and what is over all heads. */
function requireHeads(
  name: string,
  { options: { numHeads, numKvHeads, fused = false, qkNorm, attentionDropout = 0 } }: SelfAttention,
  size: number,
  refuse: (what: string) => never,
): void {
  if (qkNorm?.over === "projection") {
    throw new ArgumentError(
      `Cannot cut '${name}' by heads: its norms go over all heads together; cut queries, keys and values colwise_gather_output, and ` +
        "the output rowwise_split_input",
    );
  }
  if (attentionDropout > 0) {
    refuse("masks of attention dropout over a part of the heads (set it to 0, or cut colwise_gather_output)");
  }
  requireHeadCount(name, numHeads, "heads", size);
  const hasCopies = numKvHeads < size && size % numKvHeads === 0 && !fused;
  if (!hasCopies) requireHeadCount(name, numKvHeads, "heads of keys and values", size);
}

function requireLatentHeads(
  name: string,
  { options: { numHeads, attentionDropout = 0 } }: LatentAttention,
  size: number,
  refuse: (what: string) => never,
): void {
  if (attentionDropout > 0) refuse("masks of attention dropout over a part of the heads (set it to 0)");
  requireHeadCount(name, numHeads, "heads", size);
}

function requireHeadCount(name: string, count: number, what: string, size: number): void {
  if (count % size === 0) return;
  throw new ArgumentError(
    `Cannot cut '${name}': its ${count} ${what} cannot be divided over ${size} ranks; choose a size that divides ${count}`,
  );
}

/** Members of a module of the library that are only cut together. */
function belonging(module: Module): Together {
  if (module instanceof SelfAttention) {
    const { qkvProj, qProj, kProj, vProj, oProj, qNorm, kNorm, sinks, options: { qkNorm } } = module;
    const norms = qkNorm?.over === "head" ? [qNorm, kNorm] : [];
    return [
      ...[qkvProj, qProj, kProj, vProj].map((layer) => [layer, COLUMNS] as const),
      [oProj, ["rowwise"]],
      [sinks, ["colwise"]],
      ...norms.map((norm) => [norm, SUMMED_NORM] as const),
    ];
  }
  if (module instanceof LatentAttention) {
    const { qProj, qBProj, kvAProjWithMqa, kvBProj, oProj } = module;
    const heads = [qProj, qBProj, kvBProj].map((layer) => [layer, COLUMNS] as const);
    return [...heads, [kvAProjWithMqa, ["mla_kv_a_proj"]], [oProj, ["rowwise"]]];
  }
  if (module instanceof GatedFeedForward) {
    const { gateUpProj, gateProj, upProj, downProj } = module;
    return [...[gateUpProj, gateProj, upProj].map((layer) => [layer, COLUMNS] as const), [downProj, ["rowwise"]]];
  }
  return module instanceof FeedForward ? [[module.fc1, COLUMNS], [module.fc2, ["rowwise"]]] : [];
}

function requireTogether(name: string, expected: Together, parts: CutModule["parts"]): void {
  for (const [target, styles] of expected) {
    const style = target === undefined ? undefined : parts.get(target);
    if (target === undefined || (style !== undefined && styles.includes(style))) continue;
    const names = expected.flatMap(([one, [style = ""]]) => one === undefined ? [] : [`'${one.fqn ?? ""}' ${style}`]);
    throw new ArgumentError(`Cannot cut '${name}': the plan must have all of ${names.join(", ")}`);
  }
}

/** Refuses a plan that leaves out some weights of the experts, or that parts gate projections from their up projections. */
function requireExperts({ name, module, style, parts }: CutModule, group: ProcessGroup): void {
  const { size } = group;
  if (!(module instanceof Experts)) return;
  const { gateUpProj, downProj, options: { activation, intermediateSize } } = module;
  if (style === "ep_dispatch_experts") {
    requireTogether(name, [...module.parameters()].map((parameter) => [parameter, ["grouped_gemm"]]), parts);
    return requireDivisible(name, module, group);
  }
  if (style !== "moe_tp_experts") {
    throw new ArgumentError(
      `Cannot cut weights of '${name}': the plan must say moe_tp_experts of '${name}', or ep_dispatch_experts, so that the parts are ` +
        "added up",
    );
  }
  requireTogether(name, [[gateUpProj, ["packed_colwise"]], [downProj, ["rowwise"]]], parts);
  if (
    typeof activation === "string" || Math.ceil(2 * intermediateSize / size) === 2 * Math.ceil(intermediateSize / size)
  ) {
    return;
  }
  throw new ArgumentError(
    `Cannot cut '${name}' over ${size} ranks: its gate and up projections are interleaved, and their width ${intermediateSize} cannot be divided`,
  );
}

/**
 * Refuses experts whose number the ranks of a group do not divide, beside the ranks that divide them already.
 *
 * @param name of the layer, for messages
 * @throws {ArgumentError} for a number that is no multiple, or ranks that divide them already
 * @throws {UnsupportedError} for experts with adapters
 */
export function requireDivisible(name: string, experts: Experts, { size, worldRanks }: ProcessGroup): void {
  const { isAdapted, exchanges, gateUpProj: { placements, shape: [count = NaN] } } = experts;
  // Cuts of the first dim divide the experts, others their widths.
  const cuts = placements.filter(({ dim }) => dim === 0);
  const cut = cuts.find(({ axis }, place) =>
    place >= exchanges || axis.worldRanks.filter((rank) => worldRanks.includes(rank)).length > 1
  );
  if (cut !== undefined) {
    throw new ArgumentError(`Cannot divide the experts of '${name}': axis '${cut.axis.name}' divides them already`);
  }
  if (count % size !== 0) {
    const more = cuts.length === 0 ? "" : " that another axis leaves to a rank";
    throw new ArgumentError(
      `Cannot divide the ${count} experts of '${name}'${more} over ${size} ranks: give an axis whose size divides them`,
    );
  }
  if (isAdapted) {
    throw new UnsupportedError(`Cannot divide the experts of '${name}': adapters of experts are not divided yet`);
  }
}
