/**
 * Everything that a training run can be told, as sections of the one configuration: flags, keys of a file, help text.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { type Packing, PACKINGS } from "../data/samples/rows.ts";
import { ATTENTION, type Attention, OWN_ATTENTION } from "../device/attention.ts";
import { CPU_MATH, type CpuMath } from "../device/cpu.ts";
import { DEVICES } from "../device/registry.ts";
import { SCHEDULE_NAMES, type ScheduleName } from "../optim/schedule.ts";
import { type TrackerName, TRACKERS } from "../trackers/open.ts";
import { type FilePlan, fsdpPlanSchema } from "../plans/plan.ts";

/**
 * What is trained on.
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
  readonly packing: Packing;
  readonly cache: string;
}

/**
 * What is trained.
 *
 * @internal
 */
export interface ModelConfig {
  readonly model?: string | undefined;
  readonly broadcastFromRank0: boolean;
}

/**
 * How it is parallelized and computed.
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
 * Configurations of other programs: what they say are presets of the keys here.
 *
 * @internal
 */
export interface ForeignKeys {
  readonly accelerateConfig?: string | undefined;
  readonly fsdp?: boolean | string | undefined;
  readonly fsdpConfig?: string | Readonly<Record<string, unknown>> | undefined;
}

/**
 * What a rank has and how long it waits.
 *
 * @internal
 */
export interface HostConfig {
  readonly device: string;
  readonly memoryBytes?: number | undefined;
  readonly stagingBytes?: number | undefined;
  readonly timeoutSeconds?: number | undefined;
  readonly joinTimeoutSeconds: number;
  readonly reportSeconds: number;
}

/**
 * How long, how fast, from what.
 *
 * @internal
 */
export interface TrainConfig {
  readonly steps: number;
  readonly stopAfter?: number | undefined;
  readonly globalBatch: number;
  readonly microBatches: number;
  /** {@link PEAK_LEARNING_RATES} where none is given. */
  readonly learningRate?: number | undefined;
  readonly schedule: ScheduleName;
  /** {@link usualWarmupSteps} where none are given. */
  readonly warmupSteps?: number | undefined;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly maxGradNorm: number;
  readonly seed: number;
}

/**
 * What is written.
 *
 * @internal
 */
export interface OutputConfig {
  readonly out: string;
  readonly resume?: string | undefined;
  readonly overwrite: boolean;
  readonly setAside: boolean;
  readonly saveEvery: number;
  readonly keepLast: number;
  readonly asyncSave: boolean;
  readonly stateDictType: "sharded" | "full";
  readonly evalEvery: number;
  readonly logEvery: number;
  readonly reportTo: readonly TrackerName[];
  readonly runName?: string | undefined;
  readonly sampleTokens: number;
  readonly trace?: string | undefined;
  readonly prompt?: string | undefined;
}

/** Learning rates at the schedule's peak where none is given: weights that have learned need small steps. */
export const PEAK_LEARNING_RATES = { fromScratch: 2e-3, fineTuning: 2e-5 } as const;

/** Most steps of a warm-up that is not given. */
const USUAL_WARMUP = 20;

/** Steps to warm up for where none are given: a short run must not spend itself on them. */
export function usualWarmupSteps(steps: number): number {
  return Math.min(USUAL_WARMUP, Math.floor(steps / 10));
}

/** What `mesh` may be. */
const MESH = /^(?:shard|hybrid|[1-9]\d*x[1-9]\d*)$/;

const count = z.int().nonnegative();
const size = z.int().positive();
const seconds = z.number().positive();
/** Not empty, as what an unset variable of a shell gives. */
const path = z.string().regex(/./s, "a path");

/** Data keys. */
export const dataSection: Section<DataConfig> = section(
  "data",
  z.strictObject({
    data: z.array(path).default([]).describe("Text or .jsonl files, folders or quoted patterns").meta({
      otherNames: ["dataset", "dataset-name", "train-file", "input"],
    }),
    evalData: z.array(path).default([]).describe("Text to measure the loss on, likewise; it is not trained on"),
    textField: z.string().default("text").describe("Key of a .jsonl line that holds its text"),
    tokenizer: path.optional().describe("tokenizer.json, or a folder that holds one"),
    eosToken: z.string().regex(/./s, "a token").optional().describe(
      "The token that ends documents, where the tokenizer's files name none or another",
    ),
    sequenceLength: size.default(256).describe("Tokens of a sample").meta({
      otherNames: ["seq-len", "seq-length", "max-length", "max-seq-length", "block-size", "context-length"],
    }),
    packing: z.enum(PACKINGS).default("wrapped").describe(
      "How documents become samples: wrapped: one stream, cut anywhere; bfd: several in a sample, which do not see each other, long ones " +
        "cut off; bfd-split: likewise, long ones in several samples; none: one in a sample, cut off",
    ).meta({ otherNames: ["packing-strategy", "sample-packing", "neat-packing", "group-texts"] }),
    cache: path.default(".cache/fullyshard").describe("Folder for tokenized text"),
  }),
);

/** Model keys. */
export const modelSection: Section<ModelConfig> = section(
  "model",
  z.strictObject({
    model: path.optional().describe(
      "Hugging Face folder, name in its cache, or checkpoint to fine-tune; from scratch without it",
    )
      .meta({ otherNames: ["model-name-or-path", "pretrained"] }),
    broadcastFromRank0: z.boolean().default(false).describe(
      "Let rank 0 alone read weights and checkpoints, and send the others what they hold",
    ).meta({ otherNames: ["cpu-ram-efficient-loading", "sync-module-states"] }),
  }),
);

/** Parallelism keys. */
export const parallelSection: Section<ParallelConfig> = section(
  "parallelism",
  z.strictObject({
    strategy: z.enum(["fsdp", "ddp"]).default("fsdp").describe("Shard the model, or replicate it"),
    fsdpPlan: fsdpPlanSchema.default("transformer").describe(
      "What is gathered at a time: transformer: a block; auto: also embeddings, and final norm with head; none: all; or a plan " +
        "as JSON",
    ).meta({ otherNames: ["auto-wrap-policy", "fsdp-auto-wrap-policy", "wrap-policy"] }),
    mesh: z.string().regex(MESH, "shard, hybrid, or replicas x ranks such as 2x4").default("shard").describe(
      "Who shares the model: shard: all ranks; hybrid: those of a host, each host has a copy; 2x4: 2 copies, 4 ranks share each",
    ).meta({ otherNames: ["dp-shard-size", "dp-replicate-size", "fsdp-size", "data-parallel-shard-degree"] }),
    reshardAfterForward: z.boolean().default(true).describe(
      "Keep a block's parameters from forward to backward (faster, more memory)",
    ),
    backwardPrefetch: z.boolean().default(false).describe("Gather a block while the backward of another computes"),
    forwardPrefetch: z.boolean().default(false).describe("Gather a block while the forward of another computes"),
    cpuOffload: z.boolean().default(false).describe(
      "Keep shards, their gradients and optimizer states in host memory beside the device's",
    ).meta({ otherNames: ["offload-params", "enable-cpu-offload"] }),
    offloadStates: path.optional().describe(
      "With cpuOffload: folder on a local disk for a file of the optimizer states",
    ).meta({ otherNames: ["nvme-path", "offload-optimizer-nvme-path"] }),
    activationCheckpointing: z.enum(["none", "full", "selective"]).default("none").describe(
      "Compute a block's activations again in the backward (slower, less memory): all, or all but products and attention",
    ),
    activationCheckpointingEvery: size.default(1).describe("Blocks from one that is checkpointed to the next"),
    gradientCheckpointing: z.boolean().default(false).describe(
      "The Trainer's name for 'activationCheckpointing: full'; not both",
    ),
    precision: z.enum(["float32", "bfloat16", "float16"]).default("float32").describe(
      "What is computed in; weights stay float32, and in float16 the loss is scaled",
    ).meta({ otherNames: ["dtype", "torch-dtype", "bf16", "fp16", "mixed-precision"] }),
    cpuMath: z.enum(CPU_MATH).default("auto").describe("Who computes on the CPU"),
    threads: size.optional().describe(
      "Threads that share a rank's work; the host's cores by its ranks unless given, and one with WASM",
    ),
    cudaGraphs: z.boolean().default(false).describe(
      "With cuda: take steps by launching a graph, captured from the fourth step of a shape, instead of call by call",
    ).meta({ otherNames: ["cuda-graph", "use-cuda-graphs", "graphs"] }),
    attention: z.enum(ATTENTION).default(OWN_ATTENTION).describe(
      "Who computes attention: kernels of this library, or with cuda cuDNN what it takes (bfloat16 and float16 without masks)",
    ).meta({ otherNames: ["attn-implementation", "sdpa-backend"] }),
  }),
);

/** Keys that name configurations of other programs. */
export const foreignSection: Section<ForeignKeys> = section(
  "accelerate",
  z.strictObject({
    accelerateConfig: path.optional().describe(
      "Accelerate's YAML or JSON file, as it is; flags and the file of --config win",
    ),
    fsdp: z.union([z.boolean(), z.string()]).optional().describe(
      "As in Transformers: true, or options such as 'full_shard auto_wrap'; false replicates",
    ),
    fsdpConfig: z.union([z.string(), z.record(z.string(), z.unknown())]).optional().describe(
      "Transformers' fsdp_config as a JSON or YAML file, or its contents",
    ),
  }),
);

/** Host keys. */
export const hostSection: Section<HostConfig> = section(
  "host",
  z.strictObject({
    device: z.string().regex(
      new RegExp(`^(?:${DEVICES.join("|")})(?::\\d+)?$`),
      `${DEVICES.join(", ")}, or one card such as cuda:0`,
    ).default("cpu").describe("What is computed on: cpu, or cuda for NVIDIA's cards, one for each rank of a host"),
    memoryBytes: size.min(2 ** 24).optional().describe(
      "Memory that a rank may use; what is free on a card, 4 GiB with WASM math, what the host has with native math unless given",
    ),
    stagingBytes: size.optional().describe(
      "Shared memory for reductions, over all ranks; by their number unless given",
    ),
    timeoutSeconds: seconds.optional().describe(
      "How long a rank waits for a live but late one; FULLYSHARD_TIMEOUT_SECONDS, else 600, unless given",
    ),
    joinTimeoutSeconds: seconds.default(60).describe("How long a rank waits for one that has not started"),
    reportSeconds: seconds.default(10).describe("How late a live rank is when it is reported"),
  }),
);

/** Training keys. */
export const trainSection: Section<TrainConfig> = section(
  "training",
  z.strictObject({
    steps: size.default(200).describe(
      "Optimizer steps in all, those before a resume included; the log says how many an epoch has",
    ).meta({
      otherNames: ["epochs", "num-epochs", "num-train-epochs", "max-steps", "num-steps", "iterations", "iters"],
    }),
    stopAfter: size.optional().describe(
      "Save a checkpoint and end after this step; the schedule still counts to steps",
    ),
    globalBatch: size.default(8).describe("Samples of a step, over all ranks and micro-batches").meta({
      otherNames: ["batch-size", "batch", "train-batch-size", "global-batch-size", "per-device-train-batch-size"],
    }),
    microBatches: size.default(1).describe("Parts that a rank computes its share of a step in").meta({
      otherNames: ["gradient-accumulation-steps", "grad-accum", "accumulation-steps"],
    }),
    learningRate: z.number().nonnegative().optional().describe(
      `Peak learning rate (default: ${PEAK_LEARNING_RATES.fromScratch}; with a model to fine-tune ` +
        `${PEAK_LEARNING_RATES.fineTuning.toExponential()})`,
    ).meta({ otherNames: ["lr"] }),
    schedule: z.enum(SCHEDULE_NAMES).default("cosine").describe(
      "How the learning rate falls after the warm-up",
    ),
    warmupSteps: count.optional().describe(
      `Steps in which the learning rate grows (default: ${USUAL_WARMUP}, at most a tenth of the steps)`,
    ).meta({ otherNames: ["warmup"] }),
    weightDecay: z.number().nonnegative().default(0.1).describe("AdamW's decoupled decay").meta({ otherNames: ["wd"] }),
    beta1: z.number().min(0).lt(1).default(0.9).describe("AdamW's decay of the first moment"),
    beta2: z.number().min(0).lt(1).default(0.95).describe("AdamW's decay of the second moment"),
    maxGradNorm: z.number().positive().default(1).describe("Gradients are scaled down to this norm").meta({
      otherNames: ["grad-clip", "clip-grad-norm", "gradient-clipping"],
    }),
    seed: count.default(0).describe("Decides first weights, the order of the data and the sample"),
  }),
);

/** Output keys. */
export const outputSection: Section<OutputConfig> = section(
  "output",
  z.strictObject({
    out: path.default("runs/train").describe("Folder for metrics, checkpoints and the model").meta({
      otherNames: ["output-dir", "output", "save-dir"],
    }),
    resume: path.optional().describe(
      "Checkpoint to go on from; 'auto' takes the newest whole one in the output folder",
    ),
    overwrite: z.boolean().default(false).describe(
      "Replace the metrics and the model that another run left in the output folder",
    ).meta({ otherNames: ["overwrite-output-dir"] }),
    setAside: z.boolean().default(false).describe(
      "Move what another run left in the output folder to a new folder beside it, checkpoints too",
    ),
    saveEvery: count.default(0).describe("Steps from one checkpoint to the next; 0 saves none").meta({
      otherNames: ["save-steps", "save-interval"],
    }),
    keepLast: size.default(3).describe("Checkpoints kept"),
    asyncSave: z.boolean().default(false).describe(
      "Write checkpoints while training goes on, from a copy in memory (as much as weights and optimizer)",
    ).meta({ otherNames: ["async-mode", "async-checkpoint"] }),
    stateDictType: z.enum(["sharded", "full"]).default("sharded").describe(
      "What a checkpoint holds: shards to go on from; full: a Hugging Face model as well",
    ).meta({ otherNames: ["fsdp-state-dict-type"] }),
    evalEvery: count.default(0).describe(
      "Steps from one evaluation on evalData to the next; 0 evaluates after the last step only",
    ),
    logEvery: size.default(10).describe("Steps from one printed line to the next").meta({
      otherNames: ["logging-steps", "log-interval"],
    }),
    reportTo: z.array(z.enum(TRACKERS)).default([]).describe(
      "Trackers that show the metrics besides metrics.jsonl: tensorboard writes files that 'wandb sync' reads too; mlflow sends " +
        "to MLFLOW_TRACKING_URI",
    ),
    runName: z.string().min(1).optional().describe("Name of the run at trackers (default: the output folder's)"),
    sampleTokens: count.default(64).describe("Tokens of the sample printed at the end; 0 prints none"),
    trace: path.regex(/^(?!.*\.json$)/, "a folder; 'fullyshard trace' makes a file of it").optional().describe(
      "Folder for what each rank does when (units, calls, kernels); 'fullyshard trace' makes one file of it, for Perfetto",
    ).meta({ otherNames: ["profile", "profile-dir", "torch-profiler"] }),
    prompt: z.string().optional().describe("What the sample goes on from (default: a beginning of the data)"),
  }),
);

/** All sections of a training run. */
export const TRAIN_SECTIONS: readonly [
  Section<DataConfig>,
  Section<ModelConfig>,
  Section<ParallelConfig>,
  Section<ForeignKeys>,
  Section<HostConfig>,
  Section<TrainConfig>,
  Section<OutputConfig>,
] = [dataSection, modelSection, parallelSection, foreignSection, hostSection, trainSection, outputSection];

/** What a step depends on, besides its model. */
export type StepConfig =
  & Pick<DataConfig, "sequenceLength" | "packing">
  & Pick<OutputConfig, "asyncSave">
  & ParallelConfig
  & TrainConfig;

/** A resolved training configuration. */
export type RunConfig = DataConfig & ModelConfig & StepConfig & ForeignKeys & HostConfig & OutputConfig;
