/**
 * The training that parity is shown on: a small Llama (or Phi-3, with dropout), the library's own steps with clipping and AdamW, one micro-batch a
 * rank with unequal numbers of tokens, in ways that must agree: DDP, FSDP freeing or keeping parameters or parts of them,
 * HSDP, one rank accumulating all micro-batches, and plain parameters, which know no parallelism: see `plain.ts`.
 *
 * @module
 */
import { tmpdir } from "node:os";
import {
  type ActivationCheckpointingOptions,
  Adafactor,
  AdamW,
  AdamW8bit,
  addLora,
  applyActivationCheckpointing,
  type CausalLm,
  cpuOffloadPolicy,
  type FsdpPlan,
  fullyShard,
  Lion,
  Muon,
  replicate,
  shardModel,
  Tensor,
} from "../../mod.ts";
import {
  buildModel,
  IGNORE_INDEX,
  initializeParameters,
  type Optimizer,
  ownedPtr,
  type Parameter,
} from "../../doors/nn.ts";
import { type Device, dtypeFrom, openFilePool, type StatePool } from "../../doors/device.ts";
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import type { MicroBatch } from "../../doors/data.ts";
import { deviceMesh, type ProcessGroup } from "../../doors/comm.ts";
import { type StepContext, trainStep } from "../../doors/config.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";
import { withFolder } from "./folder.ts";
import { plainStep } from "./plain.ts";

/** The parallelism of the model. */
export type Mode = "plain" | "ddp" | "fsdp-reshard" | "fsdp-keep" | "fsdp-partial";

/** Host memory, or that with the optimizer's states in a file. */
export type Offload = "host" | "file";

/** Names of plans. */
export const PLAN_NAMES = ["auto", "manual", "size", "none"] as const;
/** Name of a plan. */
export type PlanName = typeof PLAN_NAMES[number];

/** Plans by which units are made. */
const PLANS: Readonly<Record<PlanName, FsdpPlan>> = {
  auto: "auto",
  manual: {
    mode: "manual",
    modules: { "model.layers.*": ["free_full_weight"], "model.layers.*.mlp": ["keep_full_weight"] },
  },
  size: { mode: "size", minNumParams: 4000 },
  none: "none",
};

/** The reshard mode after the forward; in a partial reshard two ranks keep halves. */
const RESHARDS: Readonly<Partial<Record<Mode, boolean | number>>> = {
  "fsdp-reshard": true,
  "fsdp-keep": false,
  "fsdp-partial": 2,
};

/** One training. */
export interface TrainingCase {
  readonly mode: Mode;
  readonly tied: boolean;
  /** Micro-batches a step, one a rank; a single rank takes all. */
  readonly microBatches: number;
  readonly steps: number;
  /** Parts of the ranks that each hold all parameters: gradients are summed in each part, and these sums then. @default 1 */
  readonly replicas?: number | undefined;
  /** True if the second block is left out: in every third step by all ranks, in the step after it by some micro-batches. */
  readonly skips?: boolean;
  /** Names of the dtypes of computation and of reduction. @default float32 */
  readonly precision?: PrecisionNames | undefined;
  /** The memory of shards, gradients and optimizer states. @default on the device */
  readonly offload?: Offload | undefined;
  /** The plan of units. @default a unit for each block */
  readonly plan?: PlanName | undefined;
  /** True if a block's parameters are gathered while the one before it computes; without a plan. @default false */
  readonly prefetches?: boolean;
  /** The checkpointing of blocks. @default none */
  readonly checkpointing?: ActivationCheckpointingOptions | undefined;
  /** True if the second half of the steps is taken by a second model, which loads the checkpoint of the first. @default false */
  readonly resumed?: boolean;
  /** Names the initial weights. @default 7 */
  readonly seed?: number;
  /** True if attention and the residual branches use dropout. @default false */
  readonly dropout?: boolean;
  /** True if an adapter with its own dropout is trained, and the model frozen. @default false */
  readonly lora?: boolean;
  /** The optimizer. @default AdamW */
  readonly optimizer?: OptimizerName | undefined;
}

/** Names of dtypes. */
export interface PrecisionNames {
  readonly paramDtype: string;
  readonly reduceDtype: string;
}

/** The losses of a rank, and its shard at the end. */
export interface Trace {
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
  /** This rank's elements of each parameter. */
  readonly owned: readonly {
    readonly fqn: string;
    readonly offset: number;
    /** Of type float32; numbers where a trace was written as JSON. */
    readonly values: ArrayLike<number>;
  }[];
}

const BATCH = 2;
const SEQ = 24;
const VOCAB = 160;

/** AdamW's; its other settings are PyTorch's defaults. */
export const LEARNING_RATE = 3e-3;
/** Total norm that gradients are clipped to. */
export const MAX_GRAD_NORM = 1;

/**
 * A model that drops out. It is not Phi, whose attention and feed-forward share an input: a unit around one of them, as the size
 * plan makes, adds that one's gradients of the input first.
 */
const DROPOUT = { model_type: "phi3", attention_dropout: 0.3, resid_pdrop: 0.2, pad_token_id: 0 };

/** The model's Hugging Face config. */
export function configOf({ tied, dropout = false }: TrainingCase): Record<string, unknown> {
  return {
    model_type: "llama",
    vocab_size: VOCAB,
    hidden_size: 48,
    intermediate_size: 88,
    num_hidden_layers: 3,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: SEQ,
    tie_word_embeddings: tied,
    initializer_range: 0.1,
    ...dropout ? DROPOUT : {},
  };
}

/** A micro-batch of which some labels are to be ignored, more in some micro-batches than in others. */
export function microBatch(step: number, micro: number, microBatches: number): MicroBatch {
  const key = keyOf(1, `step ${step}, micro-batch ${micro}`);
  const inputIds = Int32Array.from({ length: BATCH * SEQ }, (_, i) => uniformInt(key, i, VOCAB));
  const labels = inputIds.map((_, i) => {
    const last = i % SEQ === SEQ - 1;
    const ignored = uniformInt(key, 1000 + i, 10) < 1 + 2 * (micro % 3);
    return last || ignored ? IGNORE_INDEX : inputIds[i + 1] ?? IGNORE_INDEX;
  });
  const random = { seed: 3, firstSample: (step * microBatches + micro) * BATCH };
  return { inputIds, labels, batch: BATCH, seq: SEQ, random };
}

function parallelize(
  model: CausalLm,
  training: TrainingCase,
  group: ProcessGroup,
  optimizerStates: StatePool | undefined,
): void {
  const { mode, precision: names, replicas = 1 } = training;
  if (mode === "plain") return;
  const { paramDtype = "float32", reduceDtype = "float32" } = names ?? {};
  const precision = { paramDtype: dtypeFrom(paramDtype), reduceDtype: dtypeFrom(reduceDtype) };
  if (mode === "ddp") {
    replicate(model, { mesh: group, bucketBytes: 64 * 1024, precision });
    return;
  }
  const reshardAfterForward = RESHARDS[mode];
  const mesh = replicas === 1 ? group : deviceMesh(group, { replicate: replicas, shard: group.size / replicas });
  const memory = cpuOffloadPolicy(optimizerStates === undefined ? {} : { optimizerStates });
  const offload = training.offload === undefined ? {} : { offloadPolicy: memory };
  if (training.plan !== undefined) {
    const fsdpPlan = PLANS[training.plan];
    shardModel(model, {
      mesh,
      fsdpPlan,
      precision,
      ...reshardAfterForward === undefined ? {} : { reshardAfterForward },
      ...offload,
    });
    return;
  }
  const { prefetches = false } = training;
  const policy = { mesh, reshardAfterForward, precision, backwardPrefetch: prefetches, ...offload };
  const units = model.layers.map((block) => fullyShard(block, policy));
  fullyShard(model, policy);
  for (const [i, unit] of prefetches ? units.entries() : []) {
    unit.setModulesToForwardPrefetch(units.slice(i + 1, i + 2));
  }
}

/** Lets a model leave out its second block; what is returned is told of each step, from 0. */
function leaveOut(model: CausalLm): (step: number) => void {
  const [, block] = model.layers;
  if (block === undefined) throw new Error("a model of one block");
  let [step, skips] = [0, false];
  const [whole, part] = [model.forward.bind(model), block.forward.bind(block)];
  model.forward = (inputs) => {
    const [id = 0] = inputs.inputIds.toArray();
    skips = step % 3 === 1 || (step % 3 === 2 && id % 2 === 1);
    return whole(inputs);
  };
  block.forward = (...args) => skips && args[0] instanceof Tensor ? args[0].mul(1) : part(...args);
  return (now) => void (step = now);
}

/** The elements of each parameter that this rank owns. */
export function ownedParts(model: CausalLm): Trace["owned"] {
  return [...model.parameters()].map((parameter) => {
    const values = new Float32Array(parameter.storage.shard.numel);
    if (values.length > 0) {
      parameter.storage.flatShard.device.copyOut(new Uint8Array(values.buffer), ownedPtr(parameter));
    }
    return { fqn: parameter.fqn, offset: elementSlices(parameter.storage.shard)[0]?.offset ?? 0, values };
  });
}

/** A model under its optimizer. */
type Trained = Pick<StepContext, "model" | "optimizer"> & { readonly begin: ((step: number) => void) | undefined };

function open(
  device: Device,
  group: ProcessGroup,
  training: TrainingCase,
  seed: number,
  pool: StatePool | undefined,
): Trained {
  const model = buildModel(device, configOf(training));
  const begin = training.skips === true ? leaveOut(model) : undefined;
  if (training.checkpointing !== undefined) applyActivationCheckpointing(model.layers, training.checkpointing);
  if (training.lora === true) addLora(model, { r: 4, loraAlpha: 16, loraDropout: 0.1 });
  parallelize(model, training, group, pool);
  initializeParameters(model, seed);
  const trained = [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
  return { model, optimizer: optimizerOf(training.optimizer, trained), begin };
}

/** Optimizers besides AdamW, by name. */
export type OptimizerName = "lion" | "muon" | "adafactor" | "adamw8bit";

function optimizerOf(name: OptimizerName | undefined, trained: readonly Parameter[]): Optimizer {
  const options = { learningRate: LEARNING_RATE };
  if (name === undefined) return new AdamW(trained, options);
  if (name === "lion") return new Lion(trained, { learningRate: LEARNING_RATE / 10, weightDecay: 0.1 });
  if (name === "adafactor") return new Adafactor(trained, { learningRate: 0.1, weightDecay: 0.01 });
  if (name === "adamw8bit") return new AdamW8bit(trained, options);
  const isHidden = ({ fqn, globalShape }: Parameter): boolean => globalShape.length === 2 && fqn.includes("layers.");
  return new Muon([
    { parameters: trained.filter(isHidden), learningRate: 0.02 },
    { parameters: trained.filter((parameter) => !isHidden(parameter)), useMuon: false },
  ], options);
}

/** Saves what was trained, and goes on with a model of other weights and a new optimizer that load it. */
async function resume(group: ProcessGroup, { model, optimizer }: Trained, other: Trained): Promise<Trained> {
  await withFolder(group, async (directory) => {
    await saveCheckpoint({ directory, step: 1, model, optimizer, group, state: {} });
    await loadCheckpoint({ directory, model: other.model, optimizer: other.optimizer, group });
  });
  return other;
}

/** Trains; every rank of the group calls it. */
export async function train(device: Device, group: ProcessGroup, training: TrainingCase): Promise<Trace> {
  const { microBatches, steps } = training;
  using pool = training.offload === "file" ? await openFilePool(tmpdir()) : undefined;
  let trained = open(device, group, training, training.seed ?? 7, pool);
  const losses: number[] = [];
  const gradNorms: number[] = [];
  for (let step = 0; step < steps; step++) {
    if (training.resumed === true && step === Math.ceil(steps / 2)) {
      trained = await resume(group, trained, open(device, group, training, 8, pool));
    }
    const context: StepContext = { device, group, maxGradNorm: MAX_GRAD_NORM, ...trained };
    trained.begin?.(step);
    const mine = Array.from(
      { length: microBatches / group.size },
      (_, i) => microBatch(step, i * group.size + group.rank, microBatches),
    );
    const { loss, gradNorm } = training.mode === "plain"
      ? plainStep(context, mine, training.replicas ?? 1)
      : trainStep(context, { microBatches: mine }, step + 1);
    losses.push(loss);
    gradNorms.push(gradNorm);
  }
  return { losses, gradNorms, owned: ownedParts(trained.model) };
}
