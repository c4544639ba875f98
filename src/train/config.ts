/**
 * All settings of a training run, as sections of one configuration: flags, keys of a file, help text.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { LOSS_PARTS, type LossPart } from "../data/chat/encode_row.ts";
import { type Packing, PACKINGS } from "../data/samples/rows.ts";
import { ATTENTION, type Attention, OWN_ATTENTION } from "../device/attention.ts";
import { CPU_MATH, type CpuMath } from "../device/cpu.ts";
import { DEVICES } from "../device/registry.ts";
import { SCHEDULE_NAMES, type ScheduleName } from "../optim/schedule.ts";
import { type FilePlan, fsdpPlanSchema } from "../plans/plan.ts";
import { type AdapterConfig, adapterSection } from "./adapter_config.ts";
import { type AxesConfig, axesSection } from "./axes_config.ts";
import { count, path, size } from "./config_values.ts";
import { type DistillationConfig, distillationSection } from "./distillation_config.ts";
import { type EvaluationConfig, evaluationSection } from "./evaluation_config.ts";
import { type HuggingFaceConfig, huggingFaceSection } from "./hugging_face_config.ts";
import { type OptimizerConfig, optimizerSection } from "./optimizer_config.ts";
import { type OutputConfig, outputSection } from "./output_config.ts";
import { type PreferenceConfig, preferenceSection } from "./preference_config.ts";

/**
 * Data to train on.
 *
 * @internal
 */
export interface DataConfig {
  readonly data: readonly string[];
  readonly evalData: readonly string[];
  readonly textField: string;
  readonly tokenizer?: string | undefined;
  readonly eosToken?: string | undefined;
  readonly sequenceLength: number;
  /** Default: `wrapped` for text, `none` for rows of chats and prompts. */
  readonly packing?: Packing | undefined;
  readonly cache: string;
  /** Default: true for more than 1 GiB of data. */
  readonly streaming?: boolean | undefined;
  readonly chatTemplate?: string | undefined;
  readonly lossOn?: LossPart | undefined;
  readonly skipBadRows: boolean;
}

/**
 * Model to train.
 *
 * @internal
 */
export interface ModelConfig {
  readonly model?: string | undefined;
  readonly broadcastFromRank0: boolean;
}

/**
 * Parallelism and computation.
 *
 * @internal
 */
export interface ParallelConfig {
  readonly strategy: "fsdp" | "ddp";
  readonly fsdpPlan: FilePlan;
  /** `shard`, `hybrid`, or numbers as `2x4`: see `meshOf`. */
  readonly mesh: string;
  readonly reshardAfterForward: boolean;
  readonly backwardPrefetch: boolean;
  readonly forwardPrefetch: boolean;
  readonly cpuOffload: boolean;
  readonly offloadStates?: string | undefined;
  readonly activationCheckpointing: "none" | "full" | "selective";
  readonly activationCheckpointingEvery: number;
  readonly gradientCheckpointing: boolean;
  readonly precision: "float32" | "bfloat16" | "float16";
  readonly cpuMath: CpuMath;
  readonly threads?: number | undefined;
  readonly cudaGraphs: boolean;
  readonly attention: Attention;
}

/**
 * Device, memory and timeouts of a rank.
 *
 * @internal
 */
export interface RankConfig {
  readonly device: string;
  readonly memoryBytes?: number | undefined;
  readonly stagingBytes?: number | undefined;
  readonly timeoutSeconds?: number | undefined;
  readonly joinTimeoutSeconds: number;
  readonly reportSeconds: number;
}

/**
 * Steps, batch and optimizer.
 *
 * @internal
 */
export interface TrainConfig {
  readonly steps: number;
  readonly stopAfter?: number | undefined;
  readonly globalBatch: number;
  readonly microBatches: number;
  /** Default: {@link PEAK_LEARNING_RATES}. */
  readonly learningRate?: number | undefined;
  readonly schedule: ScheduleName;
  /** Default: {@link usualWarmupSteps}. */
  readonly warmupSteps?: number | undefined;
  readonly weightDecay: number;
  readonly beta1: number;
  /** Default: the optimizer's. */
  readonly beta2?: number | undefined;
  readonly maxGradNorm: number;
  readonly neftuneNoiseAlpha?: number | undefined;
  readonly seed: number;
}

/** Default peak learning rates: smaller where already trained weights are updated. */
export const PEAK_LEARNING_RATES = {
  fromScratch: 2e-3,
  fineTuning: 2e-5,
  adapter: 2e-4,
  preference: 1e-6,
  preferenceAdapter: 1e-5,
} as const;

/** Largest default number of warm-up steps. */
const USUAL_WARMUP = 20;

/** Default number of warm-up steps: a tenth of a short run. */
export function usualWarmupSteps(steps: number): number {
  return Math.min(USUAL_WARMUP, Math.floor(steps / 10));
}

/** Values of `mesh`. */
const MESH = /^(?:shard|hybrid|[1-9]\d*x[1-9]\d*)$/;

const seconds = z.number().positive();

/** Data keys. */
export const dataSection: Section<DataConfig> = section(
  "data",
  z.strictObject({
    data: z.array(path).default([]).describe(
      "Training data: text files, or rows (.jsonl, .json, .csv, .parquet) with text or chats; folders and quoted " +
        "patterns too. Weights make a mixture: a.jsonl:0.7 b.jsonl:0.3",
    ).meta({
      otherNames: ["dataset", "dataset-name", "train-file", "input", "interleave-probs", "data-weights"],
    }),
    evalData: z.array(path).default([]).describe(
      "Held-out files, in the same formats as data; name=path gives a set metrics of its own",
    ).meta({ otherNames: ["eval-dataset", "validation-file", "valid-data", "test-data", "val-data"] }),
    textField: z.string().default("text").describe("Key, or column, of a row that holds its text"),
    tokenizer: path.optional().describe("tokenizer.json, or a folder that holds one"),
    eosToken: z.string().regex(/./s, "a token").optional().describe(
      "End-of-text token after each document, where the tokenizer's files name none or another",
    ),
    sequenceLength: size.default(256).describe("Tokens of a sample").meta({
      otherNames: ["seq-len", "seq-length", "max-length", "max-seq-length", "block-size", "context-length"],
    }),
    packing: z.enum(PACKINGS).optional().describe(
      "How documents become samples: wrapped: one token stream, cut anywhere; bfd: several documents in a sample, " +
        "no attention between them, long ones truncated; bfd-split: likewise, long ones split; none: one document, " +
        "truncated (default: wrapped; none for chats)",
    ).meta({ otherNames: ["packing-strategy", "sample-packing", "neat-packing", "group-texts"] }),
    cache: path.default(".cache/fullyshard").describe("Folder for tokenized text"),
    streaming: z.boolean().optional().describe(
      "Tokenize data during training, window by window, instead of all of it before the first step (default: above " +
        "1 GiB)",
    ).meta({ otherNames: ["stream", "iterable-dataset", "buffer-size", "shuffle-buffer"] }),
    chatTemplate: path.optional().describe("Jinja file with the chat template (default: the tokenizer's)").meta({
      otherNames: ["chat-template-path", "template"],
    }),
    lossOn: z.enum(LOSS_PARTS).optional().describe(
      "Part of chats that is trained on (default: the assistant's turns; with prompt and completion, the completion)",
    ).meta({ otherNames: ["assistant-only-loss", "completion-only-loss", "train-on-inputs", "roles-to-train"] }),
    skipBadRows: z.boolean().default(false).describe(
      "Skip rows of chats that cannot be used, and log how many; otherwise the first one ends the run",
    ).meta({ otherNames: ["skip-invalid-rows", "ignore-errors"] }),
  }),
);

/** Model keys. */
const modelSection: Section<ModelConfig> = section(
  "model",
  z.strictObject({
    model: path.optional().describe(
      "Model to fine-tune: Hugging Face folder, name in its cache, or checkpoint (default: train from scratch)",
    )
      .meta({ otherNames: ["model-name-or-path", "pretrained"] }),
    broadcastFromRank0: z.boolean().default(false).describe(
      "Rank 0 alone reads weights and checkpoints, and sends them to the others",
    ).meta({ otherNames: ["cpu-ram-efficient-loading", "sync-module-states"] }),
  }),
);

/** Parallelism keys. */
export const parallelSection: Section<ParallelConfig> = section(
  "parallelism",
  z.strictObject({
    strategy: z.enum(["fsdp", "ddp"]).default("fsdp").describe("Shard the model, or replicate it"),
    fsdpPlan: fsdpPlanSchema.default("transformer").describe(
      "Modules that become FSDP units: transformer: each block; auto: also embeddings, and final norm with head; " +
        "none: the whole model as one; or a plan as JSON",
    ).meta({ otherNames: ["auto-wrap-policy", "fsdp-auto-wrap-policy", "wrap-policy"] }),
    mesh: z.string().regex(MESH, "shard, hybrid, or replicas x ranks such as 2x4").default("shard").describe(
      "How ranks share the model: shard: one copy over all ranks; hybrid: one copy per host; 2x4: 2 copies of 4 " +
        "ranks each",
    ),
    reshardAfterForward: z.boolean().default(true).describe(
      "Free a block's parameters after its forward, and gather them again in the backward (less memory, slower)",
    ),
    backwardPrefetch: z.boolean().default(false).describe("Gather the next block while a block's backward computes"),
    forwardPrefetch: z.boolean().default(false).describe("Gather the next block while a block's forward computes"),
    cpuOffload: z.boolean().default(false).describe(
      "Keep shards, their gradients and optimizer states in host memory beside the device's",
    ).meta({ otherNames: ["offload-params", "enable-cpu-offload"] }),
    offloadStates: path.optional().describe(
      "With cpuOffload: folder on a local disk for a file of the optimizer states",
    ).meta({ otherNames: ["nvme-path", "offload-optimizer-nvme-path"] }),
    activationCheckpointing: z.enum(["none", "full", "selective"]).default("none").describe(
      "Recompute a block's activations in the backward (slower, less memory): full: all; selective: all but the " +
        "outputs of matrix products and attention",
    ),
    activationCheckpointingEvery: size.default(1).describe("Checkpoint every n-th block"),
    gradientCheckpointing: z.boolean().default(false).describe(
      "Transformers' name for 'activationCheckpointing: full'; not both",
    ),
    precision: z.enum(["float32", "bfloat16", "float16"]).default("float32").describe(
      "dtype of forward and backward; master weights stay float32; float16 scales the loss",
    ).meta({ otherNames: ["dtype", "torch-dtype", "bf16", "fp16", "mixed-precision"] }),
    cpuMath: z.enum(CPU_MATH).default("auto").describe(
      "CPU kernels: native, wasm, wasm-relaxed; auto: native where it works, else wasm-relaxed",
    ),
    threads: size.optional().describe(
      "Threads that share a rank's work; default: the host's cores divided by its ranks, and one with WASM",
    ),
    cudaGraphs: z.boolean().default(false).describe(
      "With cuda: capture the step as a CUDA graph, at the fourth step of equal shapes, and launch that",
    ).meta({ otherNames: ["cuda-graph", "use-cuda-graphs", "graphs"] }),
    attention: z.enum(ATTENTION).default(OWN_ATTENTION).describe(
      "Code that computes attention: this library's, or with cuda cuDNN (bfloat16 and float16 without masks)",
    ).meta({ otherNames: ["attn-implementation", "sdpa-backend"] }),
  }),
);

/** Host keys. */
export const hostSection: Section<RankConfig> = section(
  "host",
  z.strictObject({
    device: z.string().regex(
      new RegExp(`^(?:${DEVICES.join("|")})(?::\\d+)?$`),
      `${DEVICES.join(", ")}, or one card such as cuda:0`,
    ).default("cpu").describe(
      "Device of the computation: cpu, or cuda for NVIDIA's cards, one for each rank of a host",
    ),
    memoryBytes: size.min(2 ** 24).optional().describe(
      "Memory of a rank; default: a card's free memory, the host's with native math, 4 GiB with WASM math",
    ),
    stagingBytes: size.optional().describe(
      "Shared memory for reductions, all ranks together (default: 2 MiB per pair of ranks, at most 64 MiB; 8 MiB " +
        "between Workers)",
    ),
    timeoutSeconds: seconds.optional().describe(
      "Time that a rank waits for a live but late rank; default: FULLYSHARD_TIMEOUT_SECONDS, else 600",
    ),
    joinTimeoutSeconds: seconds.default(60).describe("Time that a rank waits for a rank that has not started"),
    reportSeconds: seconds.default(10).describe("Delay after which a live but late rank is reported"),
  }),
);

/** Training keys. */
export const trainSection: Section<TrainConfig> = section(
  "training",
  z.strictObject({
    steps: size.default(200).describe(
      "Optimizer steps in total, including those before a resume; the log prints the steps per epoch",
    ).meta({
      otherNames: ["epochs", "num-epochs", "num-train-epochs", "max-steps", "num-steps", "iterations", "iters"],
    }),
    stopAfter: size.optional().describe(
      "Save a checkpoint and end after this step; the schedule still counts to steps",
    ),
    globalBatch: size.default(8).describe("Samples of a step, over all ranks and micro-batches").meta({
      otherNames: ["batch-size", "batch", "train-batch-size", "global-batch-size", "per-device-train-batch-size"],
    }),
    microBatches: size.default(1).describe("Micro-batches into which a rank divides its samples of a step").meta({
      otherNames: ["gradient-accumulation-steps", "grad-accum", "accumulation-steps"],
    }),
    learningRate: z.number().nonnegative().optional().describe(
      `Peak learning rate (default: ${PEAK_LEARNING_RATES.fromScratch}; with a model to fine-tune ` +
        `${PEAK_LEARNING_RATES.fineTuning.toExponential()}, with an adapter ${PEAK_LEARNING_RATES.adapter.toExponential()}; ` +
        `with preference ${PEAK_LEARNING_RATES.preference.toExponential()} and ` +
        `${PEAK_LEARNING_RATES.preferenceAdapter.toExponential()})`,
    ).meta({ otherNames: ["lr"] }),
    schedule: z.enum(SCHEDULE_NAMES).default("cosine").describe(
      `Shape of the learning rate after the warm-up: ${SCHEDULE_NAMES.join(", ")}`,
    ).meta({ shown: "name", otherNames: ["lr-scheduler-type", "lr-scheduler", "lr-schedule", "scheduler"] }),
    warmupSteps: count.optional().describe(
      `Steps over which the learning rate rises to its peak (default: ${USUAL_WARMUP}, at most a tenth of the ` +
        "steps)",
    ).meta({ otherNames: ["warmup"] }),
    weightDecay: z.number().nonnegative().default(0.1).describe("Decoupled decay of weights; with sgd, an L2 penalty")
      .meta({ otherNames: ["wd"] }),
    beta1: z.number().min(0).lt(1).default(0.9).describe(
      "AdamW's decay of the first moment; Lion's share of the momentum in a step",
    ),
    beta2: z.number().min(0).lt(1).optional().describe(
      "AdamW's decay of the second moment (default: 0.95), or Lion's of the momentum (default: 0.99)",
    ),
    maxGradNorm: z.number().positive().default(1).describe("Clip the gradient norm to at most this").meta({
      otherNames: ["grad-clip", "clip-grad-norm", "gradient-clipping"],
    }),
    neftuneNoiseAlpha: z.number().positive().optional().describe(
      "NEFTune: in training, add uniform noise of at most alpha / √(tokens of a row × width) to embeddings (default: none)",
    ).meta({ otherNames: ["neftune", "neftune-alpha", "noise-alpha"] }),
    seed: count.default(0).describe("Seed of initial weights, the order of the data and the sample"),
  }),
);

/** All sections of a training run. */
export const TRAIN_SECTIONS: readonly [
  Section<DataConfig>,
  Section<ModelConfig>,
  Section<AdapterConfig>,
  Section<PreferenceConfig>,
  Section<DistillationConfig>,
  Section<ParallelConfig>,
  Section<AxesConfig>,
  Section<HuggingFaceConfig>,
  Section<RankConfig>,
  Section<TrainConfig>,
  Section<OptimizerConfig>,
  Section<EvaluationConfig>,
  Section<OutputConfig>,
] = [
  dataSection,
  modelSection,
  adapterSection,
  preferenceSection,
  distillationSection,
  parallelSection,
  axesSection,
  huggingFaceSection,
  hostSection,
  trainSection,
  optimizerSection,
  evaluationSection,
  outputSection,
];

/** The settings of a step, besides its model. */
export type StepConfig =
  & Pick<DataConfig, "sequenceLength" | "packing" | "streaming">
  & Pick<OutputConfig, "asyncSave">
  & AdapterConfig
  & PreferenceConfig
  & DistillationConfig
  & OptimizerConfig
  & ParallelConfig
  & AxesConfig
  & TrainConfig;

/** A resolved training configuration. */
export type RunConfig =
  & DataConfig
  & ModelConfig
  & StepConfig
  & HuggingFaceConfig
  & RankConfig
  & EvaluationConfig
  & OutputConfig;
