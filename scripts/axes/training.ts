/**
 * A training of a family over axes, on a rank: a step of plain gradients, then steps with clipping, an evaluation by generated ids.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { getModelStateDict, saveHfDirectory } from "../../doors/checkpoint.ts";
import type { DeviceMesh, MeshShape, ProcessGroup } from "../../doors/comm.ts";
import type { Batch } from "../../src/data/micro_batch.ts";
import type { Device } from "../../doors/device.ts";
import { IGNORE_INDEX, ownedPtr, type Parameter, writeParameters } from "../../doors/nn.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import {
  AdamW,
  addLora,
  applyActivationCheckpointing,
  type CausalLm,
  clipGradNorm,
  type ContextCommStrategy,
  evaluate,
  expertsOf,
  fullyShard,
  generate,
  type Lora,
  openModel,
  parallelizeContext,
  parallelizeExperts,
  parallelizeModule,
  parallelizePipeline,
  type PipelineOptions,
  replicate,
  scope,
  SGD,
  tensorPlanOf,
} from "../../mod.ts";
import { dtypeFrom, float32 } from "../../src/dtype.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";
import { Run } from "../../src/train/run.ts";
import { ownedValues } from "../../tests/support/owned.ts";
import type { DeviceOrders } from "./serve.ts";

/** Where a rank is. */
export interface AxesRank {
  readonly device: Device;
  readonly group: ProcessGroup;
}

/** What is trained, and over which axes. */
export interface FamilyOrders extends DeviceOrders {
  readonly config: Readonly<Record<string, unknown>>;
  readonly axes: MeshShape;
  /** Of the first values. @default 3 */
  readonly seed?: number;
  readonly mode?: "fsdp" | "ddp";
  readonly checkpointing?: boolean;
  /** The dtype of forward and backward, where they are not float32; gradients are reduced in float32. */
  readonly paramDtype?: "bfloat16" | "float16";
  /** The way in which attention hears of the other ranks of a context axis. @default allgather */
  readonly commStrategy?: ContextCommStrategy;
  /** Each rank of the tensor axis has a part of the positions between the layers that are cut. */
  readonly sequenceParallel?: boolean;
  /** The ranks of the tensor axis divide the experts by their number, and not by their widths. */
  readonly expertParallel?: boolean;
  /** Trains adapters of all linear layers, and nothing else. */
  readonly lora?: boolean;
  /**
   * Stages of an axis `pipeline`, where there is one. Each row is a micro-batch then, and an evaluation's loss comes before the losses;
   * give it to one rank too, to compare.
   */
  readonly stages?: Omit<PipelineOptions, "dtype"> | undefined;
  /** Clipped steps. @default 3 */
  readonly steps?: number;
  /** Batches whose gradients are reported, one after the other. @default 1 */
  readonly gradientBatches?: number;
  /** A Hugging Face folder that is written of the first values: give it to one rank. @default none */
  readonly folder?: string;
  /** The main rank reports the last values. */
  readonly tellsWeights?: boolean;
}

/** What came of it. */
export interface FamilyReport {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  /** Digest of the first values. */
  readonly first: string;
  readonly last: string;
  /** Gradients of one batch or of several, by name, on the main rank. */
  readonly gradients: Readonly<Record<string, readonly number[]>>;
  /** Last values by name, where they were asked for. */
  readonly weights: Readonly<Record<string, readonly number[]>>;
  readonly generated: readonly number[];
  /** Digest of what this rank keeps of parameters that no axis cuts. */
  readonly uncut: string;
  /** Names of parameters that are cut. */
  readonly cut: readonly string[];
  readonly inUse: readonly number[];
}

const [ROWS, SEQ] = [4, 12];
/** Learning rate, weight decay and epsilon of AdamW, and the norm that gradients are clipped to. */
export const OPTIMIZER = { lr: 3e-3, weightDecay: 0.1, eps: 1e-4, clip: 0.1 } as const;
/** The first batch whose gradients are reported. */
export const FIRST_BATCH = 100;

/** Ids and labels of a batch, which depend on the step alone: rows of all ranks. In each batch of an odd step, one row has no label. */
export function tokensOf(
  vocabSize: number,
  step: number,
): { readonly all: Int32Array; readonly targets: Int32Array; readonly seq: number } {
  const key = keyOf(5, `step ${step}`);
  const all = Int32Array.from({ length: ROWS * SEQ }, (_, i) => uniformInt(key, i, vocabSize));
  const isSilent = (place: number): boolean => step % 2 === 1 && Math.floor(place / SEQ) === 1;
  const targets = all.map((_, i) =>
    uniformInt(key, 1000 + i, 5) === 0 || isSilent(i) ? IGNORE_INDEX : all[(i + 1) % all.length] ?? NaN
  );
  return { all, targets, seq: SEQ };
}

/** This rank's rows of a batch. */
export function batchOf({ samples: { rank, size } }: Run, { vocabSize }: CausalLm, step: number): Batch {
  const { all, targets } = tokensOf(vocabSize, step);
  const [begin, end] = [rank * ROWS / size * SEQ, (rank + 1) * ROWS / size * SEQ];
  const [inputIds, labels] = [all.subarray(begin, end), targets.subarray(begin, end)];
  const random = { seed: 3, firstSample: step * ROWS + rank * ROWS / size };
  return { microBatches: [{ inputIds, labels, batch: ROWS / size, seq: SEQ, random }] };
}

/** As {@link batchOf}, with a micro-batch for each row where the model is trained in stages, or beside such a training. */
export function batchFor(run: Run, model: CausalLm, step: number, { stages }: FamilyOrders): Batch {
  const { microBatches } = batchOf(run, model, step);
  if (stages === undefined) return { microBatches };
  return {
    microBatches: microBatches.flatMap(({ inputIds, labels, batch, seq, random }) =>
      Array.from({ length: batch }, (_, row) => {
        const part = (all: Int32Array): Int32Array => all.subarray(row * seq, (row + 1) * seq);
        const counted = random === undefined ? {} : { random: { ...random, firstSample: random.firstSample + row } };
        return { inputIds: part(inputIds), labels: part(labels), batch: 1, seq, ...counted };
      })
    ),
  };
}

function valuesOf(model: CausalLm, { group }: AxesRank): ReadonlyMap<string, Float32Array> {
  const state = getModelStateDict(model, { group, fullStateDict: true });
  return new Map([...state].map(([name, { toArray }]) => [name, Float32Array.from(toArray(), Number)]));
}

function digestOf(values: ReadonlyMap<string, Float32Array>): string {
  const hash = createHash("sha256");
  for (const [name, one] of [...values].sort(([a], [b]) => a < b ? -1 : 1)) {
    hash.update(name).update(new Uint8Array(one.buffer));
  }
  return hash.digest("hex").slice(0, 12);
}

/** A family's model over the axes, with first values. */
export async function laidOut(
  rank: AxesRank,
  orders: FamilyOrders,
): Promise<{ readonly run: Run; readonly model: CausalLm; readonly adapter: Lora | undefined }> {
  const { device, group } = rank;
  const { config, axes, mode = "fsdp", checkpointing = false, lora = false, commStrategy, stages } = orders;
  const { sequenceParallel = false, expertParallel = false, paramDtype, seed = 3 } = orders;
  const run = new Run({ device, group, axes, print: () => undefined });
  const model = await openModel(run, config, { seed });
  const names = run.mesh.axes;
  const adapter = lora ? addLora(model, { r: 3, loraAlpha: 6 }) : undefined;
  if (names.includes("context")) parallelizeContext(model, run.mesh.get("context"), { commStrategy });
  const hasExperts = names.includes("expert");
  if (hasExperts) parallelizeExperts(model, run.mesh.get("expert"));
  // Ranks that have the same experts, and those that have the same of all else.
  const flat = (axes: readonly string[]): string => {
    const joined = axes.filter((name) => names.includes(name));
    return joined.length === 1 ? "shard" : run.mesh.flatten(joined, joined.join("_")).axes.join();
  };
  const [expertShards, shards] = [flat(["shard", "context"]), flat(["shard", "expert", "context"])];
  if (names.includes("tensor")) {
    parallelizeModule(model, run.mesh.get("tensor"), tensorPlanOf(model, {}, { sequenceParallel, expertParallel }));
  }
  const pipeline = names.includes("pipeline")
    ? parallelizePipeline(model, run.mesh.get("pipeline"), stages)
    : undefined;
  const { layers } = pipeline ?? model;
  if (checkpointing) applyActivationCheckpointing(layers);
  const meshOf = (shards: string): DeviceMesh =>
    names.includes("replicate") ? run.mesh.slice(["replicate", shards]) : run.mesh.get(shards);
  const [mesh, expertMesh] = [meshOf(shards), meshOf(expertShards)];
  const precision = paramDtype === undefined ? {} : { paramDtype: dtypeFrom(paramDtype), reduceDtype: float32 };
  const ofExperts = { mesh: expertMesh, precision: { ...precision, castForwardInputs: false } };
  for (const experts of hasExperts ? expertsOf(model).values() : []) fullyShard(experts, ofExperts);
  if (mode === "ddp") replicate(model, { mesh, precision });
  else for (const module of [...layers, model]) fullyShard(module, { mesh, precision });
  await model.load();
  if (adapter !== undefined) fillSecondFactors(adapter);
  return { run, model, adapter };
}

/** Gives second factors, which begin as zeros, values that depend on their places in the full factor alone. */
function fillSecondFactors({ layers }: Lora): void {
  writeParameters([...layers.values()].map(({ factors: { b } }) => b), (factor) => {
    const { device, storage: { shard } } = factor;
    const values = new Float32Array(shard.numel);
    for (const { offset, length, local } of elementSlices(shard)) {
      for (let i = 0; i < length; i++) values[local + i] = ((offset + i) * 7 % 13 - 6) / 100;
    }
    device.copyIn(ownedPtr(factor), new Uint8Array(values.buffer));
  });
}

/** The parameters that are trained. */
function trained(model: CausalLm): readonly Parameter[] {
  return [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
}

/** The gradients of a batch, by a step that changes the first values of the model. */
function gradientsOf(
  rank: AxesRank,
  { run, model }: { readonly run: Run; readonly model: CausalLm },
  batch: Batch,
  before: ReadonlyMap<string, Float32Array>,
): ReadonlyMap<string, readonly number[]> {
  // So long a step that the weights before it are lost in rounding beside it.
  const learningRate = 2 ** 20;
  const sgd = new SGD(trained(model), { learningRate });
  using _frame = scope();
  run.backward(model, batch);
  sgd.step();
  sgd.zeroGrad();
  const after = valuesOf(model, rank);
  const moved = (name: string, old: Float32Array): readonly number[] =>
    [...old].map((value, i) => (value - (after.get(name)?.[i] ?? NaN)) / learningRate);
  return new Map(Array.from(before, ([name, old]) => [name, moved(name, old)]));
}

/** Takes steps of plain gradients from the first values, then trains with clipping, and generates. */
export async function trainFamily(rank: AxesRank, orders: FamilyOrders): Promise<FamilyReport> {
  const { run, model, adapter } = await laidOut(rank, orders);
  const batchAt = (step: number): Batch => batchFor(run, model, step, orders);
  const { folder, steps = 3, gradientBatches = 1 } = orders;
  if (folder !== undefined) await saveHfDirectory(model, folder);
  const before = valuesOf(model, rank);
  const ofBatches: ReadonlyMap<string, readonly number[]>[] = [];
  for (let i = 0; i < gradientBatches; i++) {
    ofBatches.push(gradientsOf(rank, { run, model }, batchAt(FIRST_BATCH + i), before));
    await model.load();
    if (adapter !== undefined) fillSecondFactors(adapter);
  }
  const gradients = rank.group.rank > 0
    ? {}
    : Object.fromEntries([...before.keys()].map((name) => [name, ofBatches.flatMap((all) => all.get(name) ?? [])]));
  // With so large an epsilon a gradient that is rounding alone moves its weight as little as it should: by AdamW's own epsilon
  // it would be divided by itself, and norms after a step would tell of nothing else.
  const { lr, weightDecay, eps, clip } = OPTIMIZER;
  const [losses, norms, inUse]: [number[], number[], number[]] = [[], [], []];
  if (orders.stages !== undefined) losses.push((await evaluate(run, model, [batchAt(50)])).loss);
  const optimizer = new AdamW(trained(model), { learningRate: lr, weightDecay, eps });
  for (let step = 0; step < steps; step++) {
    using _frame = scope();
    optimizer.zeroGrad();
    losses.push(run.backward(model, batchAt(step)).item());
    norms.push(clipGradNorm(model.parameters(), clip).item());
    optimizer.step();
    inUse.push(rank.device.allocator.stats.inUse);
  }
  const uncut = createHash("sha256");
  for (const parameter of model.parameters()) {
    if (parameter.placements.length === 0) uncut.update(new Uint8Array(ownedValues(parameter).buffer));
  }
  const last = valuesOf(model, rank);
  const weights = rank.group.rank > 0 || orders.tellsWeights !== true
    ? {}
    : Object.fromEntries(Array.from(last, ([name, values]) => [name, [...values]]));
  const generated = generate(model, [1, 2, 3], { maxNewTokens: 4, temperature: 0 });
  return {
    ...{ losses, norms, first: digestOf(before), last: digestOf(last), gradients, weights, generated, inUse },
    uncut: uncut.digest("hex").slice(0, 12),
    cut: [...model.namedParameters()].flatMap(([name, { placements }]) => placements.length > 0 ? [name] : []),
  };
}
