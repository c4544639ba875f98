/**
 * Description of a sharded module: its units, their sizes, the cost of padding, and the memory of a step.
 *
 * @module
 */
import { addLora, loraOf } from "../adapters/lora.ts";
import { at } from "../at.ts";
import { twinOf } from "../comm/data/dry.ts";
import { DeviceMesh, deviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import { shardedModuleOf } from "../fsdp/handle.ts";
import type { FsdpUnit } from "../fsdp/unit.ts";
import { CausalLm } from "../models/causal_lm.ts";
import { applyActivationCheckpointing, savedOpsOf } from "../nn/activation_checkpointing.ts";
import { type Module, requireModule } from "../nn/module.ts";
import { AdamW } from "../optim/adamw.ts";
import { type DtypeLedger, ledgerOf } from "../parallel/precision.ts";
import { shardRanksOf } from "../parallel/ranks.ts";
import { shardingOf, shardModel, type ShardModelOptions } from "../plans/shard_model.ts";
import { countOf, formatBytes } from "../words.ts";
import type { MemoryPeak } from "./dry_run.ts";

/** One unit of a sharded module; numbers count elements. */
export interface UnitDescription {
  /** FQNs of its modules; the class for a root. */
  readonly name: string;
  /** Number of units around it. */
  readonly depth: number;
  /** Parameters in the unit. */
  readonly numParameters: number;
  /** Elements of its parameters, over all ranks. */
  readonly numel: number;
  /** Elements that belong to no parameter, over all ranks. */
  readonly padding: number;
  /** Number of ranks that share it. */
  readonly worldSize: number;
  /** Number of its replicas, over all ranks. */
  readonly replicas: number;
  /** Bytes of master weights on each rank, with padding, in the dtypes that they are kept in. */
  readonly bytesPerRank: number;
  /** dtypes in which the unit is kept, computed, reduced and updated. */
  readonly dtypes: DtypeLedger;
  /** True if the unsharded parameters are freed after the forward; a number if that many ranks keep shards of them. */
  readonly reshardAfterForward: boolean | number;
}

/** A step of a sharded model. */
export interface DescribeOptions {
  /** Samples of a step on each rank. @default 1 */
  readonly batch?: number;
  /** Tokens of a sample. @default the model's positions, at most 256 */
  readonly sequenceLength?: number;
}

/** The units of a sharded module; its text is a tree. */
export class ShardingDescription {
  /** The root's unit first, then the units below it in the order of their modules. */
  readonly units: readonly UnitDescription[];
  readonly #model: Module;

  /** Use {@link describeSharding}. */
  constructor(model: Module, units: readonly UnitDescription[]) {
    this.#model = model;
    this.units = units;
  }

  /**
   * Predicts the peak memory of a step of AdamW on this rank, by a dry run on a twin of the model that is sharded, checkpointed
   * and frozen like it.
   *
   * @throws {ArgumentError} if it is not a language model, was not sharded by `shardModel` or `openModel`, or lies over other axes too
   */
  async predictPeak({ batch = 1, sequenceLength }: DescribeOptions = {}): Promise<MemoryPeak> {
    const model = this.#model;
    const sharding = shardingOf(model);
    if (!(model instanceof CausalLm) || sharding === undefined) {
      throw new ArgumentError(
        `Cannot predict the peak of ${model.constructor.name}: it must be a language model that shardModel or openModel sharded; use ` +
          "dryRun for another one",
      );
    }
    if ([...model.parameters()].some(({ placements, owners }) => placements.length > 0 || owners !== undefined)) {
      throw new ArgumentError(
        `Cannot predict the peak of ${model.constructor.name}: other axes cut its parameters or divide them among stages; use dryRun`,
      );
    }
    const { dryStep, emptyBatch } = await import("./estimate.ts");
    const { options } = sharding;
    const { all } = shardRanksOf(options.mesh);
    const { rank, size: worldSize } = all;
    const seq = sequenceLength ?? Math.min(model.maxPositions, 256);
    const sizes = { globalBatch: batch * worldSize, microBatches: 1, sequenceLength: seq };
    const lora = loraOf(model);
    const { peakBytes, terms, offloaded } = await dryStep(model.hfConfig, {
      adapt: (twin) => {
        if (lora !== undefined) addLora(twin, lora.settings);
        twin.neftuneNoiseAlpha = model.neftuneNoiseAlpha;
        const parameters = new Map(model.namedParameters());
        for (const [name, parameter] of twin.namedParameters()) {
          const { frozenDtype = parameter.frozenDtype, quantized } = parameters.get(name) ?? {};
          parameter.frozenDtype = frozenDtype;
          if (quantized !== undefined) parameter.quantize(quantized);
        }
      },
      parallelize: (twin, { group }) => {
        const modules = [...model.namedModules()];
        for (const [i, [, ofTwin]] of [...twin.namedModules()].entries()) {
          const saveOps = savedOpsOf(at(modules, i, "module")[1]);
          if (saveOps !== undefined) applyActivationCheckpointing(ofTwin, { saveOps });
        }
        setRequiresGrad(twin, sharding.requiresGrad);
        shardModel(twin, { ...options, mesh: meshLike(options.mesh, group) });
        setRequiresGrad(twin, [...model.namedParameters()].map(([, parameter]) => parameter.requiresGrad));
      },
      optimizer: (twin) => new AdamW(twin.parameters()),
      batch: emptyBatch(sizes, worldSize),
      maxGradNorm: 1,
    }, { device: model.device, rank, worldSize, ...twinOf(all) });
    return { peakBytes, terms, offloaded };
  }

  /** A line for each unit, indented below the units around it. */
  toString(): string {
    const rows = this.units.map((unit) => [
      `${"  ".repeat(unit.depth)}${unit.name}`,
      `${unit.numel} in ${countOf(unit.numParameters, "parameter")}`,
      `${formatBytes(unit.bytesPerRank)} a rank`,
      unit.dtypes.compute,
      unit.reshardAfterForward === true
        ? "freed after the forward"
        : unit.reshardAfterForward === false
        ? "kept for the backward"
        : `kept in ${unit.reshardAfterForward} parts`,
    ]);
    const widths = [0, 1, 2, 3].map((column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
    const total = (of: "numel" | "bytesPerRank"): number => this.units.reduce((sum, unit) => sum + unit[of], 0);
    const [{ worldSize, replicas } = { worldSize: 1, replicas: 1 }] = this.units;
    const copies = replicas === 1 ? "" : `, ${countOf(replicas, "copy", "copies")}`;
    return [
      // The last column needs no padding.
      ...rows.map((row) => row.map((cell, column) => cell.padEnd(widths[column] ?? cell.length)).join("  ")),
      `${total("numel")} elements, ${formatBytes(total("bytesPerRank"))} a rank of ${worldSize}${copies}`,
    ].join("\n");
  }
}

function setRequiresGrad(model: Module, requiresGrad: readonly boolean[]): void {
  for (const [i, [name, parameter]] of [...model.namedParameters()].entries()) {
    parameter.requiresGrad = at(requiresGrad, i, name);
  }
}

/** A mesh of the same shape over another group. */
function meshLike(mesh: ShardModelOptions["mesh"], group: ProcessGroup): ShardModelOptions["mesh"] {
  if (!(mesh instanceof DeviceMesh)) return group;
  return deviceMesh(group, Object.fromEntries(mesh.axes.map((axis) => [axis, mesh.axis(axis).size])));
}

/**
 * Describes the units of a sharded module, the root's first. `String(describeSharding(model))` is a tree of them, and
 * `predictPeak` predicts the memory of a step.
 *
 * @throws {ArgumentError} if it is not sharded
 * @example
 * ```ts
 * import { describeSharding, launch, openModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes }, { fsdpPlan: "auto" });
 * const description = describeSharding(model);
 * if (!String(description).includes("model.norm, lm_head")) throw new Error("not in the tree");
 * const { peakBytes } = await description.predictPeak({ sequenceLength: 16 });
 * if (peakBytes < 4 * 4 * 64 * 32) throw new Error("too little for its weights and AdamW");
 * ```
 */
export function describeSharding(module: Module): ShardingDescription {
  requireModule("describe", module);
  const sharded = shardedModuleOf(module);
  if (sharded === undefined) throw new ArgumentError(`Cannot describe ${module.constructor.name}: it is not sharded`);
  const units = sharded.units();
  const below = new Map(units.map((unit) => [unit, new Set(unit.modules.flatMap((one) => modulesIn(one)))]));
  const depthOf = (unit: FsdpUnit): number =>
    units.filter((other) => other !== unit && unit.modules.every((one) => below.get(other)?.has(one))).length;
  return new ShardingDescription(module, units.map((unit, i) => describeUnit(unit, depthOf(unit), i === 0)));
}

function modulesIn(module: Module): Module[] {
  return [...module.namedModules()].map(([, member]) => member);
}

function describeUnit(unit: FsdpUnit, depth: number, isRoot: boolean): UnitDescription {
  const { name, segments, policy } = unit;
  const total = (of: (segment: typeof segments[number]) => number): number =>
    segments.reduce((sum, segment) => sum + of(segment), 0);
  const padding = total(({ plan }) => plan.padding);
  const elements = total(({ plan }) => plan.shardLength * plan.numShards);
  return {
    name,
    depth,
    numParameters: total(({ storages }) => storages.length),
    numel: elements - padding,
    padding,
    worldSize: policy.group.size,
    replicas: policy.all.size / policy.group.size,
    bytesPerRank: total(({ plan, dtype }) => plan.shardLength * dtype.byteLength),
    dtypes: ledgerOf(policy),
    reshardAfterForward: unit.reshardAfterForward ?? !isRoot,
  };
}
