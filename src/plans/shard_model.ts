/**
 * Shards a model by a plan.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { bfloat16, float32 } from "../dtype.ts";
import { fullyShard } from "../fsdp/fully_shard.ts";
import { type FullyShardedModule, undoSharding } from "../fsdp/handle.ts";
import type { FullyShardOptions } from "../fsdp/policy.ts";
import { Embedding } from "../nn/embedding.ts";
import { type Module, requireModule } from "../nn/module.ts";
import { cpuOffloadPolicy } from "../parallel/offload.ts";
import { shardRanksOf } from "../parallel/ranks.ts";
import { unwind } from "../unwind.ts";
import { type FsdpPlan, type PlannedUnit, resolvePlan } from "./plan.ts";

/** Options of {@link shardModel}: a plan, and what holds for all units where the plan says nothing else. */
export interface ShardModelOptions
  extends Pick<FullyShardOptions, "mesh" | "reshardAfterForward" | "precision" | "backwardPrefetch" | "offloadPolicy"> {
  /** The modules that become units. */
  readonly fsdpPlan: FsdpPlan;
  /** True if each unit of the plan is all-gathered while the unit before computes its forward. @default false */
  readonly forwardPrefetch?: boolean;
  /** Receives remarks for the user, e.g. which units were merged because they share weights. */
  readonly note?: ((text: string) => void) | undefined;
}

/** Names of the options of {@link shardModel}. */
export const SHARD_OPTIONS: KnownKeys<ShardModelOptions> = {
  ...{ mesh: true, reshardAfterForward: true, precision: true, backwardPrefetch: true, offloadPolicy: true },
  ...{ fsdpPlan: true, forwardPrefetch: true, note: true },
};

/** The dtypes of "mixed_precision" in a plan, as in Hugging Face's. */
const MIXED = { paramDtype: bfloat16, reduceDtype: float32 } as const;

/** The way in which a model was sharded, for callers that shard it again. */
interface ModelShardingRecord {
  /** The options that {@link shardModel} received. */
  readonly options: Omit<ShardModelOptions, "note">;
  /** The `requiresGrad` of each parameter at that time: parameters that require gradients lie together. */
  readonly requiresGrad: readonly boolean[];
}
const SHARDED: WeakMap<Module, ModelShardingRecord> = new WeakMap();

/** The way in which {@link shardModel} sharded a model; undefined if another call sharded it. */
export function shardingOf(model: Module): ModelShardingRecord | undefined {
  return SHARDED.get(model);
}

/**
 * Shards a model by a plan: calls `fullyShard` on the units, inner ones first, and on the root. As there, call it before the
 * model is initialized or loaded, and the optimizer afterwards.
 *
 * The root is kept from forward to backward, and so are units that a plan says are. The weight of an embedding that is a unit
 * of its own is not gathered for the backward, which does not need it.
 *
 * Where it throws, the model is as it was before: what was sharded until then is an ordinary module again, with its values.
 *
 * @returns the handle of the root
 * @throws {ConfigError} listing each pattern and class of the plan that the model does not have
 * @throws {ArgumentError} if an option is none of these, and as `fullyShard`
 * @example
 * ```ts
 * import { describeSharding, launch, openModel, shardModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * shardModel(model, { mesh: run.mesh, fsdpPlan: "auto" });
 * await model.load();
 * const { units } = describeSharding(model);
 * if (units.length !== 5) throw new Error("embedding, 2 blocks, norm with head, and the root");
 * ```
 */
export function shardModel(model: Module, options: ShardModelOptions): FullyShardedModule {
  requireKnownKeys("shard a model", options, SHARD_OPTIONS);
  requireModule("shard", model);
  const { note, ...kept } = options;
  const requiresGrad = [...model.namedParameters()].map(([, parameter]) => parameter.requiresGrad);
  // A plan may hold a function of the user: what it throws on one rank stops all before the first unit.
  const { units, root, notes } = shardRanksOf(options.mesh).all.agree(
    `plan ${model.constructor.name}`,
    () => resolvePlan(model, options.fsdpPlan),
  );
  const handles: FullyShardedModule[] = [];
  try {
    for (const unit of units) {
      const modules = [...unit.modules.values()].filter(isHere);
      if (modules.length === 0) continue;
      const handle = fullyShard(modules, unitOptions(unit, options));
      handles.push(handle);
      if (modules.every((module) => module instanceof Embedding)) {
        handle.setUnshardInBackward(false, { recurse: false });
      }
    }
    // The root's parameters are needed at both ends of forward and backward, so they stay in between.
    const handle = fullyShard(
      model,
      unitOptions({ ...root, free: undefined }, { ...options, reshardAfterForward: undefined }),
    );
    if (options.forwardPrefetch === true) {
      for (const [i, one] of handles.entries()) one.setModulesToForwardPrefetch(handles.slice(i + 1, i + 2));
    }
    handles.push(handle);
    for (const text of notes) note?.(text);
    SHARDED.set(model, { options: kept, requiresGrad });
    return handle;
  } catch (error) {
    // Every rank has failed alike, and undoes the same units.
    unwind(handles.toReversed().map((handle) => () => undoSharding(handle)));
    throw error;
  }
}

/** False for a module of which other stages of a pipeline keep all parameters. */
function isHere(module: Module): boolean {
  const parameters = [...module.parameters()];
  return parameters.length === 0 || parameters.some(({ storage }) => storage.kind !== "absent");
}

/** The options of `fullyShard` for a unit. */
function unitOptions(
  { free, cpuOffload, mixedPrecision }: Omit<PlannedUnit, "modules">,
  { mesh, reshardAfterForward, precision, backwardPrefetch = false, offloadPolicy }: ShardModelOptions,
): FullyShardOptions {
  return {
    mesh,
    backwardPrefetch,
    reshardAfterForward: free ?? reshardAfterForward,
    precision: mixedPrecision ? MIXED : precision,
    offloadPolicy: offloadPolicy ?? (cpuOffload ? cpuOffloadPolicy() : undefined),
  };
}
