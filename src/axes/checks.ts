/**
 * Checks that a module's linear layers may be cut together. A cut that would silently compute something else
 * is refused by name: heads that do not divide, norms and dropout over parts, layers whose outputs lie side by side.
 *
 * @module
 */
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { SelfAttention } from "../nn/attention.ts";
import { Dropout } from "../nn/dropout.ts";
import { FeedForward, GatedFeedForward } from "../nn/feed_forward.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import { LanguageModelHead } from "../nn/head.ts";
import { Indexer } from "../nn/indexer.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import type { Linear } from "../nn/linear.ts";
import { MixtureOfExperts } from "../nn/mixture_of_experts.ts";
import { Module } from "../nn/module.ts";
import type { Style } from "./styles.ts";

/** Layers of one module that are to be cut. */
export interface CutModule {
  readonly name: string;
  readonly module: Module;
  readonly layers: ReadonlyMap<Linear, Style>;
}

/** Modules of the library whose layers cannot be cut yet. */
const WHOLE = [LatentAttention, GatedDeltaNet, Indexer, MixtureOfExperts, LanguageModelHead] as const;

/**
 * Refuses a cut of some layers of a module.
 *
 * @param size ranks of the axis
 * @returns how many parts lie side by side in the outputs of a layer
 * @throws {ArgumentError} for a plan that leaves out layers which belong together, or heads that the ranks do not divide
 * @throws {UnsupportedError} for what is not there yet
 */
export function requireCuttable({ name, module, layers }: CutModule, size: number): (layer: Linear) => number {
  const refuse = (what: string): never => {
    throw new UnsupportedError(`Cannot cut '${name}' over ${size} ranks: ${what} are not there yet`);
  };
  if (WHOLE.some((one) => module instanceof one)) refuse(`parts of a ${module.constructor.name}`);
  for (const [, child] of module.children()) {
    if (child instanceof Module && child.isAdapted) refuse("adapters of a part, beside layers that are cut,");
    if (child instanceof Dropout) refuse("masks of dropout over a part, beside layers that are cut,");
  }
  if (module instanceof SelfAttention) requireHeads(name, module, size, refuse);
  for (const group of belonging(module)) requireTogether(name, group, layers);
  const packed = module instanceof GatedFeedForward ? module.gateUpProj : undefined;
  return (layer) => layer === packed ? 2 : 1;
}

/** Refuses heads that the ranks do not divide, and what is over all heads. */
function requireHeads(
  name: string,
  { options: { numHeads, numKvHeads, fused = false, qkNorm, sinks = false, attentionDropout = 0 } }: SelfAttention,
  size: number,
  refuse: (what: string) => never,
): void {
  if (fused) refuse("parts of one projection of queries, keys and values");
  if (qkNorm !== undefined) refuse("gradients of norms that each rank takes over its own heads");
  if (sinks) refuse("sinks over a part of the heads");
  if (attentionDropout > 0) refuse("masks of attention dropout over a part of the heads");
  if (numKvHeads < size) refuse(`${numKvHeads} heads of keys and values for more ranks, which would have copies,`);
  for (const [count, what] of [[numHeads, "heads"], [numKvHeads, "heads of keys and values"]] as const) {
    if (count % size === 0) continue;
    throw new ArgumentError(`Cannot cut '${name}': its ${count} ${what} are no multiple of ${size} ranks`);
  }
}

/** Layers of a module of the library with the styles that only go together. */
function belonging(module: Module): readonly ReadonlyMap<Linear, Style>[] {
  const styled = (columns: readonly (Linear | undefined)[], row: Linear): ReadonlyMap<Linear, Style> =>
    new Map<Linear, Style>([
      ...columns.flatMap((layer) => layer === undefined ? [] : [[layer, "colwise"] as const]),
      [row, "rowwise"],
    ]);
  if (module instanceof SelfAttention) return [styled([module.qProj, module.kProj, module.vProj], module.oProj)];
  if (module instanceof GatedFeedForward) {
    return [styled([module.gateUpProj, module.gateProj, module.upProj], module.downProj)];
  }
  return module instanceof FeedForward ? [styled([module.fc1], module.fc2)] : [];
}

function requireTogether(name: string, expected: ReadonlyMap<Linear, Style>, layers: CutModule["layers"]): void {
  for (const [layer, style] of expected) {
    if (layers.get(layer) === style) continue;
    const names = [...expected].map(([{ fqn }, one]) => `'${fqn}' ${one}`).join(", ");
    throw new ArgumentError(`Cannot cut '${name}': the plan must have all of ${names}`);
  }
}
