/** The code of ranks with a card each in tests of graphs. @module */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import process from "node:process";
import { at } from "../../../src/at.ts";
import { noGrad } from "../../../src/autograd/mode.ts";
import { deviceMesh } from "../../../src/comm/mesh.ts";
import type { Call } from "../../../src/comm/call.ts";
import { replicate } from "../../../src/ddp/replicate.ts";
import type { Batch } from "../../../src/data/micro_batch.ts";
import { CudaDevice } from "../../../src/device/cuda/device.ts";
import type { Device, DevicePtr } from "../../../src/device/device.ts";
import { bfloat16, float16, float32 } from "../../../src/dtype.ts";
import { GraphCaptureError, UnsupportedError } from "../../../src/errors.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { initializeParameters } from "../../../src/nn/initialize.ts";
import { applyActivationCheckpointing } from "../../../src/nn/activation_checkpointing.ts";
import { AdamW } from "../../../src/optim/adamw.ts";
import { GradScaler } from "../../../src/optim/grad_scaler.ts";
import { cosine } from "../../../src/optim/schedule.ts";
import { cpuOffloadPolicy } from "../../../src/parallel/offload.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { ownedPtr } from "../../../src/tensor/write.ts";
import { forward } from "../../../src/train/backward.ts";
import { evaluate } from "../../../src/train/evaluate.ts";
import { type StepContext, trainStep } from "../../../src/train/step.ts";
import { StepGraph } from "../../../src/train/step_graph.ts";
import { openNcclTwin, openTwin } from "../../native/cuda/build.ts";
import { rankFunctions, type WorldRank } from "../../support/world.ts";
import { CONFIG } from "./llama.ts";

/** The settings of a training. */
export interface GraphTraining {
  readonly config: Readonly<Record<string, unknown>>;
  readonly steps: number;
  readonly hasGraph: boolean;
  /** `hsdp` shards over two neighbouring ranks each; `offload` and `unpinned` shard, into memory of the host. @default fsdp */
  readonly strategy?: "fsdp" | "hsdp" | "ddp" | "offload" | "unpinned";
  /** True if blocks compute their forward again in the backward. */
  readonly isCheckpointed?: boolean;
  readonly precision?: "bfloat16" | "float16";
  /** The first scale of losses, in float16. */
  readonly initScale?: number;
  readonly microBatches?: number;
  /** True if rank 1 has one micro-batch less than the others. */
  readonly isUneven?: boolean;
  /** Tokens of a sample, and samples of a micro-batch. @default 24 and 2 */
  readonly size?: readonly [seq: number, batch: number];
  /** True if each sample holds two documents and padding, at other places in each step. */
  readonly isPacked?: boolean;
  /** Steps with samples of half the length. */
  readonly short?: readonly number[];
  /** Steps after which the model is evaluated. */
  readonly evaluatedAfter?: readonly number[];
  /** Steps after which the model is run without gradients, and left as that leaves it: what it gave is told. */
  readonly triedAfter?: readonly number[];
  /** Steps after which the model is run without gradients on a sample of twice the length: what it gave is told. */
  readonly longAfter?: readonly number[];
  /** The step with a label that is no class. */
  readonly badLabelAt?: number;
  /** The step in whose forward the last block throws. */
  readonly throwsAt?: number;
  /** True if a failed step does not end the training: a step that cannot be captured is taken again without a graph. */
  readonly goesOn?: boolean;
  /** The change before a step. */
  readonly changed?: Readonly<Record<number, "norm" | "mode" | "rate" | "betas" | "optimizer" | "states">>;
}

/** The failure of rank 1, and the step before which, or in whose forward, it happens. */
export interface Loss {
  readonly step: number;
  readonly how: `${"is killed" | "loses the network"} ${"before a step" | "in a forward"}` | "throws in a forward";
  readonly hasGraph: boolean;
}

/** The results of a training. */
export interface Trained {
  /** Of each step loss, norm, tokens and rate; of an evaluation the loss. */
  readonly steps: readonly (readonly number[])[];
  /** A digest of this rank's weights, optimizer states and loss scale. */
  readonly digest: string;
  /** Steps that were taken by a graph. */
  readonly replays: number;
  readonly error: string | undefined;
  /** Graphs that were there after the last step, and after the training. */
  readonly graphs: readonly [number, number];
  /** Bytes that the graph, where there was one, did not give back. */
  readonly left: number;
}

/** Tokens of a sample, and samples. */
const SIZE = [24, 2] as const;

function batchOf(step: number, { rank, size }: WorldRank, run: GraphTraining): Batch {
  const { microBatches = 1, short = [], badLabelAt, size: [length, batch] = SIZE } = run;
  const seq = short.includes(step) ? length / 2 : length;
  const one = (part: number): Batch["microBatches"][number] => {
    const first = ((step * microBatches + part) * size + rank) * batch;
    const ids = Int32Array.from({ length: batch * seq }, (_, i) => ((step % 4) * 31 + first % 7 + i * i + 5 * i) % 96);
    const labels = ids.map((id, i) => i % 5 < step % 3 ? -100 : (id * 5 + 7) % 96);
    if (step === badLabelAt) labels[1] = 96;
    const random = { seed: 3, firstSample: first };
    if (run.isPacked !== true) return { inputIds: ids, labels, batch, seq, random };
    const [border, end] = [1 + step % (seq - 2), seq - 1];
    const documentStarts = ids.map((_, i) => i % seq < border ? 0 : i % seq < end ? border : end);
    const kept = labels.map((label, i) => i % seq < end ? label : -100);
    const lengths = new Int32Array(batch).fill(end);
    return { inputIds: ids, labels: kept, batch, seq, documentStarts, lengths, random };
  };
  const own = microBatches - Number(run.isUneven === true && rank === 1);
  return { microBatches: Array.from({ length: own }, (_, part) => one(part)) };
}

/** Trains with or without graphs. */
async function trainByGraph(world: WorldRank, run: GraphTraining): Promise<Trained> {
  const { group, device } = world;
  assert.ok(device instanceof CudaDevice);
  const { runtime: { symbols: twin } } = await openTwin();
  const model = buildModel(device, run.config);
  initializeParameters(model, 7);
  if (run.isCheckpointed === true) applyActivationCheckpointing(model.layers);
  const paramDtype = { float32, bfloat16, float16 }[run.precision ?? "float32"];
  const precision = { paramDtype, reduceDtype: float32 };
  if (run.strategy === "ddp") replicate(model, { mesh: group, precision });
  else {
    const mesh = run.strategy === "hsdp"
      ? deviceMesh(group, { replicate: group.size / 2, shard: 2 })
      : deviceMesh(group, { shard: group.size });
    const offloadPolicy = run.strategy === "offload"
      ? cpuOffloadPolicy()
      : run.strategy === "unpinned"
      ? cpuOffloadPolicy({ pinMemory: false })
      : undefined;
    for (const layer of model.layers) fullyShard(layer, { mesh, precision, offloadPolicy });
    fullyShard(model, { mesh, precision, offloadPolicy });
  }
  const schedule = cosine({ warmupSteps: 3, steps: run.steps });
  const make = (): AdamW => new AdamW(model.parameters(), { learningRate: 0.01, schedule, weightDecay: 0.1 });
  let optimizer = make();
  const scaler = run.precision === "float16"
    ? new GradScaler(device, { initScale: run.initScale ?? 1024, growthInterval: 4 })
    : undefined;
  const graph = run.hasGraph ? new StepGraph(device) : undefined;
  let context: StepContext = { device, group, model, optimizer, maxGradNorm: 1, scaler, graph };
  let [replays, now] = [0, 0];
  model.layers.at(-1)?.registerForwardPreHook(() => {
    if (now === run.throwsAt) throw new Error("a block throws");
  });
  group.observe(({ kind }: Call) => replays += Number(kind === "replay"));
  const steps: number[][] = [];
  let error: string | undefined;
  for (let step = 0; step < run.steps && (error === undefined || run.goesOn === true); step++) {
    now = step;
    const change = run.changed?.[step];
    if (change === "norm") context = { ...context, maxGradNorm: 0.25 };
    if (change === "mode") model.eval();
    if (change === "optimizer" || change === "states") optimizer.dispose();
    if (change === "optimizer") context = { ...context, optimizer: optimizer = make() };
    for (const settings of optimizer.groups) {
      if (change === "rate") settings.learningRate *= 0.5;
      if (change === "betas") Object.assign(settings, { betas: [0.5, 0.6] });
    }
    try {
      const { loss, gradNorm, tokens, learningRate } = trainStep(context, batchOf(step, world, run), step + 1);
      steps.push([loss, gradNorm, tokens, learningRate]);
    } catch (thrown) {
      error = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
      const isRefused = thrown instanceof GraphCaptureError || thrown instanceof UnsupportedError;
      if (run.goesOn === true && isRefused) {
        context = { ...context, graph: undefined };
        step--;
        continue;
      }
    }
    if (run.evaluatedAfter?.includes(step) === true) {
      steps.push([(await evaluate({ group }, model, [batchOf(step, world, run)])).loss]);
    }
    const isLong = run.longAfter?.includes(step) === true;
    if (isLong || run.triedAfter?.includes(step) === true) {
      using _frame = scope();
      const [seq, batch] = run.size ?? SIZE;
      const sized = isLong ? { ...run, size: [2 * seq, batch] } as const : run;
      const part = at(batchOf(step, world, sized).microBatches, 0, "micro-batch");
      steps.push([noGrad(() => forward(model, part, device)).item()]);
    }
  }
  const graphs = twin.twinGraphs();
  const hash = createHash("sha256");
  const tell = (place: Pick<Device, "copyOut">, numel: number, ptr: DevicePtr): void => {
    const values = new Uint8Array(numel * float32.byteLength);
    place.copyOut(values, ptr);
    hash.update(values);
  };
  for (const parameter of model.parameters()) {
    tell(parameter.storage.flatShard.device, parameter.storage.shard.numel, ownedPtr(parameter));
  }
  for (const { parameter, device, ptr } of optimizer.stateViews()) {
    tell(device, parameter.storage.shard.numel, ptr());
  }
  if (scaler !== undefined) hash.update(JSON.stringify(scaler.state()));
  optimizer.zeroGrad();
  const { inUse } = device.allocator.stats;
  graph?.[Symbol.dispose]();
  const left = graph === undefined
    ? 0
    : device.allocator.owners(100).filter(({ owner }) => owner.includes("graph")).length;
  assert.ok(replays === 0 || device.allocator.stats.inUse < inUse, "a graph gives back nothing");
  optimizer.dispose();
  scaler?.[Symbol.dispose]();
  return { steps, digest: hash.digest("hex"), replays, error, graphs: [graphs, twin.twinGraphs()], left };
}

/** Trains without graphs, and then with them. */
export async function trainByBoth(
  world: WorldRank,
  run: Omit<GraphTraining, "hasGraph">,
): Promise<readonly [without: Trained, by: Trained]> {
  const without = await trainByGraph(world, { ...run, hasGraph: false });
  return [without, await trainByGraph(world, { ...run, hasGraph: true })];
}

/** Trains the small Llama until rank 1 is lost, and then on as long as that goes. */
export async function loseRank(world: WorldRank, { step: last, how, hasGraph }: Loss): Promise<void> {
  const { group, device, rank } = world;
  const model = buildModel(device, CONFIG);
  initializeParameters(model, 7);
  for (const module of [...model.layers, model]) fullyShard(module, { mesh: group });
  const optimizer = new AdamW(model.parameters());
  using graph = hasGraph ? new StepGraph(device) : undefined;
  const nccl = await openNcclTwin();
  let now = 0;
  const fail = (): void => {
    if (rank !== 1 || now !== last) return;
    if (how === "throws in a forward") throw new RangeError("a block throws");
    if (how.startsWith("loses")) nccl.symbols.twinNcclBreak();
    else process.kill(process.pid, "SIGKILL");
  };
  if (how.endsWith("in a forward")) model.layers.at(-1)?.registerForwardPreHook(fail);
  const run = { config: CONFIG, steps: 0, hasGraph, size: [8, 1] } as const;
  for (; now < last + 2; now++) {
    if (how.endsWith("before a step")) fail();
    trainStep({ device, group, model, optimizer, maxGradNorm: 1, graph }, batchOf(now, world, run), now + 1);
  }
}

rankFunctions(import.meta.url, { trainByBoth, loseRank });
