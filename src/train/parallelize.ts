/**
 * A model over the ranks of a run: cut over a tensor axis, sharded by FSDP with its plan or replicated by DDP, with activation
 * checkpointing.
 *
 * @module
 */
import { parallelizeContext } from "../axes/context.ts";
import { expertsOf, parallelizeExperts } from "../axes/experts.ts";
import { parallelizeModule } from "../axes/parallelize.ts";
import { parallelizePipeline } from "../axes/pipeline.ts";
import { replicate } from "../ddp/replicate.ts";
import { fullyShard } from "../fsdp/fully_shard.ts";
import type { StatePool } from "../device/state_pool.ts";
import { dtypeFrom, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { applyActivationCheckpointing } from "../nn/activation_checkpointing.ts";
import { cpuOffloadPolicy } from "../parallel/offload.ts";
import { type DtypeLedger, ledgerOf, resolvePrecision } from "../parallel/precision.ts";
import { shardModel } from "../plans/shard_model.ts";
import { tensorPlanOf } from "../plans/tensor_plan.ts";
import { checkpointingOf, requireCompatible } from "./checks.ts";
import type { StepConfig } from "./config.ts";
import { dataMeshOf, expertMeshOf } from "./mesh.ts";
import type { Run } from "./run.ts";

/** One line for each combination of dtypes, with its units. */
function ledgerLines(units: readonly { readonly name: string; readonly dtypes: DtypeLedger }[]): readonly string[] {
  const textOf = ({ dtypes }: typeof units[number]): string =>
    Object.entries(dtypes).map(([what, dtype]) => `${what} ${dtype}`).join(", ");
  return Array.from(Map.groupBy(units, textOf), ([text, members]) => {
    const [first, last] = [members[0]?.name, members.at(-1)?.name];
    const names = members.length === 1 ? `'${first}'` : `${members.length} units, '${first}' to '${last}'`;
    return `Dtypes of ${names}: ${text}`;
  });
}

/** Options of {@link parallelize} besides the configuration. */
interface ParallelizeOptions {
  readonly optimizerStates?: StatePool | undefined;
  readonly note?: ((text: string) => void) | undefined;
}

/**
 * Cuts a model over the tensor axis, shares positions over the context axis, divides experts over the expert axis,
 * divides it into stages over the pipeline axis, shards it over the ranks or replicates it, and checkpoints its blocks, as the configuration says.
 *
 * @param options `optimizerStates`: pool of the optimizer's states; `note`: receives notices about plan and dtypes
 * @throws {ConfigError} if the plan names modules that the model does not have, the mesh has another number of ranks,
 * checkpointing is asked for by two keys, or a replicated model is to be offloaded
 * @throws {ArgumentError} {@link UnsupportedError} if the model cannot be cut over the tensor axis
 */
export function parallelize(
  model: CausalLm,
  run: Pick<Run, "group" | "localWorldSize" | "mesh">,
  config: StepConfig,
  { optimizerStates, note }: ParallelizeOptions = {},
): void {
  const precision = { paramDtype: dtypeFrom(config.precision), reduceDtype: float32 };
  requireCompatible(config);
  model.neftuneNoiseAlpha = config.neftuneNoiseAlpha;
  if (run.mesh.axes.includes("tensor")) {
    const { tpPlan = "auto", enableSequenceParallel: sequenceParallel, epSize } = config;
    const how = { sequenceParallel, expertParallel: epSize > 1 };
    const plan = tensorPlanOf(model, tpPlan === "auto" ? {} : tpPlan, how);
    parallelizeModule(model, run.mesh.get("tensor"), plan);
  }
  if (run.mesh.axes.includes("context")) {
    parallelizeContext(model, run.mesh.get("context"), { commStrategy: config.cpCommStrategy });
  }
  // What cuts parameters, which needs plain ones, comes before what leaves some to other ranks.
  if (run.mesh.axes.includes("expert")) parallelizeExperts(model, run.mesh.get("expert"));
  if (run.mesh.axes.includes("pipeline")) {
    const { ppSchedule: schedule, ppStagesPerRank: stagesPerRank, ppSplit, ppLayers } = config;
    if (ppLayers.length === 0 && ppSplit === "flops") {
      throw new InternalError("stages by operations that were not measured: see withMeasuredStages");
    }
    const split = ppLayers.length > 0 || ppSplit === "flops" ? ppLayers : ppSplit;
    const how = { schedule, stagesPerRank, split, dtype: precision.paramDtype };
    const { stages } = parallelizePipeline(model, run.mesh.get("pipeline"), how);
    note?.(`Stages have ${stages.map(({ begin, end }) => end - begin).join(", ")} blocks`);
  }
  const checkpointing = checkpointingOf(config);
  if (checkpointing !== undefined) applyActivationCheckpointing(model.layers, checkpointing);
  if (config.strategy === "ddp") {
    replicate(model, { mesh: dataMeshOf(run, config), precision });
    const dtypes = ledgerOf(resolvePrecision(precision));
    return ledgerLines([{ name: model.constructor.name, dtypes }]).forEach((line) => note?.(line));
  }
  const mesh = dataMeshOf(run, config);
  const offloadPolicy = config.cpuOffload ? cpuOffloadPolicy({ optimizerStates }) : undefined;
  const { fsdpPlan, reshardAfterForward, backwardPrefetch, forwardPrefetch } = config;
  const how = { fsdpPlan, reshardAfterForward, backwardPrefetch, forwardPrefetch };
  if (run.mesh.axes.includes("expert")) {
    // Rows are in the block's dtype already, and the router's weights stay float32.
    const dtypes = { ...precision, castForwardInputs: false };
    const unit = { mesh: expertMeshOf(run), precision: dtypes, offloadPolicy, reshardAfterForward, backwardPrefetch };
    for (const experts of expertsOf(model).values()) fullyShard(experts, unit);
  }
  const root = shardModel(model, { ...how, mesh, precision, offloadPolicy, note });
  const units = root.units().map(({ name, policy }) => ({ name, dtypes: ledgerOf(policy) }));
  ledgerLines(units).forEach((line) => note?.(line));
}
