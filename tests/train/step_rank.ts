/**
 * A rank that takes steps on given tokens and tells everything about them.
 *
 * @module
 */
import { openLoopback } from "../../src/comm/data/loopback.ts";
import { serveRank } from "../../src/comm/loopback_workers.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { float16 } from "../../src/dtype.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { GradScaler } from "../../src/optim/grad_scaler.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { writeParameters } from "../../src/tensor/write.ts";
import { ownedValues } from "../support/owned.ts";
import { type StepContext, trainStep } from "../../src/train/step.ts";

/** The steps of a rank. */
export interface Orders {
  /** By rank, micro-batch and sample: token ids, and the labels that count. */
  readonly batches: readonly (readonly (readonly Sample[])[])[];
  readonly steps: number;
  /** The parameter whose first element becomes NaN, on the rank that owns it. */
  readonly poison?: string;
  /** The value that it becomes. @default NaN */
  readonly poisonValue?: number;
  /** Computes in float16 with a loss scale that begins with this. */
  readonly initScale?: number;
}

/** One sample. */
export interface Sample {
  readonly ids: readonly number[];
  readonly labels: readonly number[];
}

/** The report of a rank. */
export interface Told {
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
  readonly tokens: readonly number[];
  /** `Name: message`, or empty. */
  readonly error: string;
  /** This rank's elements of all parameters, in order of FQN. */
  readonly before: readonly number[];
  readonly after: readonly number[];
  /** Bytes in use after the first and the last step. */
  readonly inUse: readonly number[];
}

/** The model that is trained. */
export const hfConfig: Readonly<Record<string, unknown>> = {
  model_type: "llama",
  vocab_size: 32,
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 12,
  rms_norm_eps: 1e-6,
  initializer_range: 0.2,
  tie_word_embeddings: false,
};

function isOrders(data: unknown): data is Orders {
  return typeof data === "object" && data !== null && "batches" in data;
}

function batchOf(samples: readonly Sample[]): MicroBatch {
  const labels = Int32Array.from(samples.flatMap((sample) => sample.labels));
  const seq = samples[0]?.ids.length ?? 0;
  return {
    inputIds: Int32Array.from(samples.flatMap(({ ids }) => ids)),
    labels,
    batch: samples.length,
    seq,
  };
}

function weightsOf(parameters: readonly Parameter[]): number[] {
  return parameters.flatMap((parameter) => [...ownedValues(parameter)]);
}

serveRank(async ({ rank, world, data }): Promise<Told> => {
  if (!isOrders(data)) throw new Error("not what a rank of these tests is given");
  const device = await openWasmDevice({ cpuMath: "wasm", memoryBytes: 2 ** 27 });
  using group = openLoopback(world, rank, device, { timeoutSeconds: 20 });
  const model = buildModel(device, hfConfig);
  const scaler = data.initScale === undefined ? undefined : new GradScaler(device, { initScale: data.initScale });
  const precision = scaler === undefined ? {} : { paramDtype: float16 };
  for (const block of model.layers) fullyShard(block, { mesh: group, precision });
  fullyShard(model, { mesh: group, precision });
  initializeParameters(model, 7);
  const parameters = [...model.parameters()];
  if (data.poison !== undefined) {
    writeParameters(parameters, ({ fqn }, owned) => {
      if (fqn === data.poison) device.copyIn(owned, new Uint8Array(new Float32Array([data.poisonValue ?? NaN]).buffer));
    });
  }
  const optimizer = new AdamW(parameters, { learningRate: 0.01 });
  const context: StepContext = { device, group, model, optimizer, maxGradNorm: 1, scaler };
  const batches = (data.batches[rank] ?? []).map(batchOf);
  const before = weightsOf(parameters);
  const told = { losses: [0], gradNorms: [0], tokens: [0], inUse: [0] };
  for (const list of Object.values(told)) list.pop();
  let error = "";
  try {
    for (let step = 1; step <= data.steps; step++) {
      const { loss, gradNorm, tokens } = trainStep(context, { microBatches: batches }, step);
      told.losses.push(loss);
      told.gradNorms.push(gradNorm);
      told.tokens.push(tokens);
      told.inUse.push(device.allocator.stats.inUse);
    }
  } catch (thrown) {
    error = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
  }
  group.barrier("end");
  return { ...told, error, before, after: weightsOf(parameters) };
});
