/** What ranks with a card each do in tests of graphs. @module */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { deviceMesh } from "../../../src/comm/mesh.ts";
import type { Call } from "../../../src/comm/call.ts";
import { replicate } from "../../../src/ddp/replicate.ts";
import type { Batch } from "../../../src/data/loader.ts";
import { CudaDevice } from "../../../src/device/cuda/device.ts";
import type { DevicePtr } from "../../../src/device/device.ts";
import { bfloat16, float16, float32 } from "../../../src/dtype.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { initializeParameters } from "../../../src/nn/initialize.ts";
import { AdamW } from "../../../src/optim/adamw.ts";
import { GradScaler } from "../../../src/optim/grad_scaler.ts";
import { cosine } from "../../../src/optim/schedule.ts";
import { ownedPtr } from "../../../src/tensor/write.ts";
import { evaluate } from "../../../src/train/evaluate.ts";
import { trainStep } from "../../../src/train/step.ts";
import { StepGraph } from "../../../src/train/step_graph.ts";
import { openTwin } from "../../native/cuda/build.ts";
import { rankFunctions, type WorldRank } from "../../support/world.ts";

/** How a model is trained. */
export interface GraphTraining {
  readonly config: Readonly<Record<string, unknown>>;
  readonly steps: number;
  readonly hasGraph: boolean;
  readonly strategy?: "fsdp" | "ddp";
  readonly precision?: "bfloat16" | "float16";
  readonly microBatches?: number;
  /** Steps with samples of half the length. */
  readonly short?: readonly number[];
  /** Steps after which the model is evaluated. */
  readonly evaluatedAfter?: readonly number[];
  /** The step with a label that is no class. */
  readonly badLabelAt?: number;
}

/** What came of it. */
export interface Trained {
  /** Of each step loss, norm, tokens and rate; of an evaluation the loss. */
  readonly steps: readonly (readonly number[])[];
  /** A digest of this rank's weights and optimizer states. */
  readonly digest: string;
  /** Steps that were taken by a graph. */
  readonly replays: number;
  readonly error: string | undefined;
  /** Graphs that were there after the last step, and after the training. */
  readonly graphs: readonly [number, number];
  /** Bytes that the graph, where there was one, did not give back. */
  readonly left: number;
}

const SEQ = 24;

function batchOf(step: number, { rank, size }: WorldRank, run: GraphTraining): Batch {
  const { microBatches = 1, short = [], badLabelAt } = run;
  const seq = short.includes(step) ? SEQ / 2 : SEQ;
  const one = (part: number): Batch["microBatches"][number] => {
    const first = ((step * microBatches + part) * size + rank) * 2;
    const ids = Int32Array.from({ length: 2 * seq }, (_, i) => ((step % 4) * 31 + first % 7 + i * i + 5 * i) % 96);
    const labels = ids.map((id, i) => i % 5 < step % 3 ? -100 : (id * 5 + 7) % 96);
    if (step === badLabelAt) labels[1] = 96;
    return { inputIds: ids, labels, batch: 2, seq, random: { seed: 3, firstSample: first } };
  };
  return { microBatches: Array.from({ length: microBatches }, (_, part) => one(part)) };
}

/** Trains with or without graphs. */
export async function trainByGraph(world: WorldRank, run: GraphTraining): Promise<Trained> {
  const { group, device } = world;
  assert.ok(device instanceof CudaDevice);
  const { runtime: { symbols: twin } } = await openTwin();
  const model = buildModel(device, run.config);
  initializeParameters(model, 7);
  const paramDtype = { float32, bfloat16, float16 }[run.precision ?? "float32"];
  const precision = { paramDtype, reduceDtype: float32 };
  if (run.strategy === "ddp") replicate(model, { mesh: group, precision });
  else {
    const mesh = deviceMesh(group, { shard: group.size });
    for (const layer of model.layers) fullyShard(layer, { mesh, precision });
    fullyShard(model, { mesh, precision });
  }
  const schedule = cosine({ warmupSteps: 3, steps: run.steps });
  const optimizer = new AdamW(model.parameters(), { learningRate: 0.01, schedule, weightDecay: 0.1 });
  const scaler = run.precision === "float16"
    ? new GradScaler(device, { initScale: 1024, growthInterval: 4 })
    : undefined;
  const graph = run.hasGraph ? new StepGraph(device) : undefined;
  const context = { device, group, model, optimizer, maxGradNorm: 1, scaler, graph };
  let replays = 0;
  group.observe(({ kind }: Call) => replays += Number(kind === "replay"));
  const steps: number[][] = [];
  let error: string | undefined;
  for (let step = 0; step < run.steps && error === undefined; step++) {
    try {
      const { loss, gradNorm, tokens, learningRate } = trainStep(context, batchOf(step, world, run), step + 1);
      steps.push([loss, gradNorm, tokens, learningRate]);
    } catch (thrown) {
      error = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
    }
    if (run.evaluatedAfter?.includes(step) === true) {
      steps.push([(await evaluate({ group }, model, [batchOf(step, world, run)])).loss]);
    }
  }
  const graphs = twin.twinGraphs();
  const hash = createHash("sha256");
  const tell = (numel: number, ptr: DevicePtr): void => {
    const values = new Uint8Array(numel * float32.byteLength);
    device.copyOut(values, ptr);
    hash.update(values);
  };
  for (const parameter of model.parameters()) tell(parameter.storage.shard.numel, ownedPtr(parameter));
  for (const { parameter, ptr } of optimizer.stateViews()) tell(parameter.storage.shard.numel, ptr());
  optimizer.zeroGrad();
  const { inUse } = device.allocator.stats;
  graph?.[Symbol.dispose]();
  const left = graph === undefined
    ? 0
    : device.allocator.owners(100).filter(({ owner }) => owner.includes("graph")).length;
  assert.ok(graph === undefined || device.allocator.stats.inUse < inUse, "a graph gives back nothing");
  optimizer.dispose();
  scaler?.[Symbol.dispose]();
  return { steps, digest: hash.digest("hex"), replays, error, graphs: [graphs, twin.twinGraphs()], left };
}
rankFunctions(import.meta.url, { trainByGraph });
