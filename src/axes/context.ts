/**
 * Context parallelism: the ranks of an axis share the positions of each row. All layers but attention compute each position
 * independently. Attention gets other ranks' keys and values in one of three ways:
 * - `allgather`: the keys and values of all ranks are gathered. Each of a rank's two parts attends to the keys up to its own end, so
 *   outputs are bitwise equal to those of one rank.
 * - `ring`: keys and values go round the ranks, so that a rank has those of two others at most: see `ring_op.ts`.
 * - `ulysses`: ranks exchange positions for heads: see `heads.ts`. Layers that pass a state along a row always do.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { didYouMean } from "../config/nearest.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { SelfAttention } from "../nn/attention.ts";
import { CausalConv } from "../nn/causal_conv.ts";
import { attention, type AttentionFunction, cat } from "../nn/functional.ts";
import { Dropout } from "../nn/dropout.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import { Indexer } from "../nn/indexer.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import { requireOneAxis } from "../parallel/ranks.ts";
import { takeAll } from "../unwind.ts";
import { gatherContext } from "./context_ops.ts";
import { attentionOfHeads, joinConvolution, joinRule, requireDivisibleHeads } from "./heads.ts";
import { zigzag } from "./positions.ts";
import { attentionRoundRing } from "./ring.ts";

/** Ways in which attention gets other ranks' keys and values. */
export const CONTEXT_COMM_STRATEGIES: readonly ContextCommStrategy[] = ["allgather", "ring", "ulysses"];
/** Name of a way in which attention gets other ranks' keys and values. */
export type ContextCommStrategy = "allgather" | "ring" | "ulysses";

/** Options of {@link parallelizeContext}. */
export interface ParallelizeContextOptions {
  /**
   * The way in which attention gets other ranks' keys and values, as Accelerate's `cp_comm_strategy`.
   * - `allgather`: each rank gathers the keys and values of all; bitwise equal to one rank.
   * - `ring`: keys and values go from rank to rank while others are computed with, and no rank has all (`alltoall` in PyTorch's
   *   `set_rotate_method`); within rounding of one rank.
   * - `ulysses`: ranks exchange their positions for heads, whose numbers they must divide; bitwise equal to one rank.
   *
   * @default "allgather"
   */
  readonly commStrategy?: ContextCommStrategy | undefined;
}

const ATTENTION_BY: Readonly<Record<ContextCommStrategy, (group: ProcessGroup, unit: string) => AttentionFunction>> = {
  allgather: attentionOver,
  ring: attentionRoundRing,
  ulysses: attentionOfHeads,
};

/** Attention of this rank's two parts of each row to the keys of all ranks up to the end of each part. */
function attentionOver(group: ProcessGroup, unit: string): AttentionFunction {
  return (q, k, v, attrs, keyMask, sinks, documentStarts) => {
    const widths = [at(k.shape, 2, "dim"), at(v.shape, 2, "dim")];
    const joined = gatherContext(cat([k, v], -1), { group, unit: `keys and values of '${unit}'` });
    const width = at(q.shape, 1, "dim") / 2;
    const heard = zigzag(group).map((part, i) => {
      const seen = joined.narrow(1, 0, (part + 1) * width).split(widths, -1);
      const starts = documentStarts?.narrow(1, i * width, width);
      const queries = q.narrow(1, i * width, width);
      return attention(queries, at(seen, 0, "part"), at(seen, 1, "part"), attrs, keyMask, sinks, starts);
    });
    return cat(heard, 1);
  };
}

/** Refuses models whose ranks would need more of each other than keys and values. */
function requireDivisible(model: CausalLm, size: number, commStrategy: ContextCommStrategy): void {
  for (const [name, module] of model.namedModules()) {
    if (module instanceof Indexer) {
      throw new UnsupportedError(
        `Cannot share positions over a context axis: '${name}' (Indexer) chooses keys of all positions for each, and a rank has those of ` +
          "its own; use a context axis of 1 rank",
      );
    }
    requireDivisibleHeads(name, module, size, { exchangesAttention: commStrategy === "ulysses" });
  }
  if (model.countsPadding) {
    throw new UnsupportedError(
      "Cannot share positions over a context axis: the loss that balances the routers is of all positions of a row, and a rank has " +
        "a part of them; set router_aux_loss_coef to 0, or use a context axis of 1 rank",
    );
  }
  if (model.neftuneNoiseAlpha !== undefined) {
    throw new UnsupportedError(
      "Cannot share positions over a context axis: the noise on embeddings is drawn by places in a row, and a rank counts its own; " +
        "leave neftuneNoiseAlpha out, or use a context axis of 1 rank",
    );
  }
  const dropping = [...model.namedModules()].find(([, module]) => dropProbability(module) > 0);
  if (dropping !== undefined) {
    const [name] = dropping;
    throw new UnsupportedError(
      `Cannot share positions over a context axis: '${name}' drops out by places in a row, and a rank counts its own; set its ` +
        "probability to 0, or use a context axis of 1 rank",
    );
  }
}

/** Refuses full rows without a cache, as attention would take them for this rank's positions. */
function requirePositions(inputs: unknown): void {
  const has = (name: string): boolean =>
    typeof inputs === "object" && inputs !== null && Reflect.get(inputs, name) !== undefined;
  if (has("pastKeyValues") || (has("positionIds") && has("rowLength"))) return;
  throw new ArgumentError(
    "Cannot run a forward without 'positionIds' and 'rowLength': the ranks of a context axis share the positions of each row. Give " +
      "full rows to run.backward or evaluate, which take this rank's positions",
  );
}

function requireStrategy(given: string): void {
  const known: readonly string[] = CONTEXT_COMM_STRATEGIES;
  if (known.includes(given)) return;
  throw new ArgumentError(
    `Cannot share positions: commStrategy must be ${known.slice(0, -1).join(", ")} or ${known.at(-1)}, got '${given}'` +
      (given === "alltoall" ? "; what PyTorch calls alltoall is ring here" : didYouMean(given, known)),
  );
}

/** The probability with which a module drops out. */
function dropProbability(module: Module): number {
  if (module instanceof Dropout) return module.p;
  const attends = module instanceof SelfAttention || module instanceof LatentAttention;
  return attends ? module.options.attentionDropout ?? 0 : 0;
}

/**
 * Lets the ranks of a context axis share the positions of each row: each computes two parts of it, and attention gets the keys and
 * values of the others as `commStrategy` says. `run.backward`, the trainer and `evaluate` take full rows and give each rank its part; the loss is of the
 * positions of all ranks. A rank's activations are those of its positions, and by `allgather` the keys and values of all. Shard the model
 * over the context axis too, so that its gradients are summed: `mesh.flatten(["shard", "context"], "shard_context")`. Every rank must call it.
 *
 * @param axis one axis of a mesh
 * @param options `commStrategy`: the way in which attention gets other ranks' keys and values
 * @returns ends it
 * @throws {UnsupportedError} if layers choose keys or drop out, or routers are balanced by a loss
 * @throws {ArgumentError} if the mesh has several axes, the model shares its positions already, the strategy is unknown, or ranks do
 * not divide heads that they exchange
 * @example
 * ```ts ignore
 * const run = await launch({ axes: { shard: 2, context: 2 } });
 * const model = await openModel(run, "path/to/llama");
 * parallelizeContext(model, run.mesh.get("context"));
 * fullyShard(model, { mesh: run.mesh.flatten(["shard", "context"], "shard_context") });
 * ```
 */
export function parallelizeContext(
  model: CausalLm,
  axis: DeviceMesh,
  { commStrategy = "allgather" }: ParallelizeContextOptions = {},
): HookHandle {
  requireOneAxis(axis, "share positions");
  requireStrategy(commStrategy);
  const { group } = axis;
  model.ensureNames();
  group.agree(`share positions of ${model.constructor.name}`, () => {
    if (model.positions !== undefined) {
      throw new ArgumentError("Cannot share positions: the model's ranks do so already");
    }
    if (group.size > 1) requireDivisible(model, group.size, commStrategy);
  });
  if (group.size === 1) return () => {};
  const ends = [...model.namedModules()].flatMap(([name, module]): HookHandle[] => {
    if (module instanceof SelfAttention || module instanceof LatentAttention) {
      return [module.setAttention(ATTENTION_BY[commStrategy](group, name))];
    }
    if (module instanceof GatedDeltaNet) return [joinRule(module, group, name)];
    return module instanceof CausalConv ? [joinConvolution(module, group, name)] : [];
  });
  ends.push(model.registerForwardPreHook(([inputs]) => requirePositions(inputs)));
  model.positions = group;
  return () => {
    if (ends.length > 0) model.positions = undefined;
    takeAll(ends.splice(0));
  };
}
