/**
 * Everything that a training run can be told, as sections of the one configuration: flags, keys of a file, help text.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { CPU_MATH, type CpuMath } from "../device/cpu.ts";
import type { ScheduleName } from "../optim/schedule.ts";

/** What is trained on. */
export interface DataConfig {
  readonly data: readonly string[];
  readonly textField: string;
  readonly tokenizer?: string | undefined;
  readonly sequenceLength: number;
  readonly cache: string;
}

/** What is trained. */
export interface ModelConfig {
  readonly model?: string | undefined;
}

/** How it is parallelized and computed. */
export interface ParallelConfig {
  readonly strategy: "fsdp" | "ddp";
  readonly reshardAfterForward: boolean;
  readonly precision: "float32" | "bfloat16";
  readonly cpuMath: CpuMath;
}

/** What a rank has and how long it waits. */
export interface HostConfig {
  readonly memoryBytes?: number | undefined;
  readonly stagingBytes?: number | undefined;
  readonly timeoutSeconds?: number | undefined;
  readonly joinTimeoutSeconds: number;
  readonly reportSeconds: number;
}

/** How long, how fast, from what. */
export interface TrainConfig {
  readonly steps: number;
  readonly stopAfter?: number | undefined;
  readonly globalBatch: number;
  readonly microBatches: number;
  readonly learningRate: number;
  readonly schedule: ScheduleName;
  readonly warmupSteps: number;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly maxGradNorm: number;
  readonly seed: number;
}

/** What is written. */
export interface OutputConfig {
  readonly out: string;
  readonly resume?: string | undefined;
  readonly overwrite: boolean;
  readonly saveEvery: number;
  readonly keepLast: number;
  readonly logEvery: number;
  readonly sampleTokens: number;
  readonly prompt: string;
}

const count = z.int().nonnegative();
const size = z.int().positive();
const seconds = z.number().positive();

/** Data keys. */
export const dataSection: Section<DataConfig> = section(
  "data",
  z.strictObject({
    data: z.array(z.string()).default([]).describe("Text or .jsonl files, folders or globs"),
    textField: z.string().default("text").describe("Key of a .jsonl line that holds its text"),
    tokenizer: z.string().optional().describe("tokenizer.json, or a folder that holds one"),
    sequenceLength: size.default(256).describe("Tokens of a sample"),
    cache: z.string().default(".cache/fullyshard").describe("Folder for tokenized text"),
  }),
);

/** Model keys. */
export const modelSection: Section<ModelConfig> = section(
  "model",
  z.strictObject({
    model: z.string().optional().describe("Hugging Face folder to fine-tune; from scratch without it"),
  }),
);

/** Parallelism keys. */
export const parallelSection: Section<ParallelConfig> = section(
  "parallelism",
  z.strictObject({
    strategy: z.enum(["fsdp", "ddp"]).default("fsdp").describe("Shard the model, or replicate it"),
    reshardAfterForward: z.boolean().default(true).describe("Free a block's parameters between forward and backward"),
    precision: z.enum(["float32", "bfloat16"]).default("float32").describe("What is computed in; weights stay float32"),
    cpuMath: z.enum(CPU_MATH).default("auto").describe("Who computes on the CPU"),
  }),
);

/** Host keys. */
export const hostSection: Section<HostConfig> = section(
  "host",
  z.strictObject({
    memoryBytes: size.min(2 ** 24).optional().describe(
      "Memory that a rank may use; 4 GiB with WASM math, what the host has with native math unless given",
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
    steps: size.default(200).describe("Optimizer steps in all, those before a resume included"),
    stopAfter: size.optional().describe(
      "Save a checkpoint and end after this step; the schedule still counts to steps",
    ),
    globalBatch: size.default(8).describe("Samples of a step, over all ranks"),
    microBatches: size.default(1).describe("Parts that a rank computes its share of a step in"),
    learningRate: z.number().nonnegative().default(2e-3).describe("Peak learning rate"),
    schedule: z.enum(["cosine", "linear", "constant"]).default("cosine").describe(
      "How the learning rate falls after the warm-up",
    ),
    warmupSteps: count.default(20).describe("Steps in which the learning rate grows"),
    weightDecay: z.number().nonnegative().default(0.1).describe("AdamW's decoupled decay"),
    beta1: z.number().min(0).lt(1).default(0.9).describe("AdamW's decay of the first moment"),
    beta2: z.number().min(0).lt(1).default(0.95).describe("AdamW's decay of the second moment"),
    maxGradNorm: z.number().positive().default(1).describe("Gradients are scaled down to this norm"),
    seed: count.default(0).describe("Decides first weights, the order of the data and the sample"),
  }),
);

/** Output keys. */
export const outputSection: Section<OutputConfig> = section(
  "output",
  z.strictObject({
    out: z.string().default("runs/train").describe("Folder for metrics, checkpoints and the model"),
    resume: z.string().optional().describe(
      "Checkpoint to go on from; 'auto' takes the newest whole one in the output folder",
    ),
    overwrite: z.boolean().default(false).describe(
      "Replace the metrics and the model that another run left in the output folder",
    ),
    saveEvery: count.default(0).describe("Steps from one checkpoint to the next; 0 saves none"),
    keepLast: size.default(3).describe("Checkpoints kept"),
    logEvery: size.default(10).describe("Steps from one printed line to the next"),
    sampleTokens: count.default(64).describe("Tokens of the sample printed at the end"),
    prompt: z.string().default("interface ").describe("What the sample goes on from"),
  }),
);

/** All sections of a training run. */
export const TRAIN_SECTIONS: readonly [
  Section<DataConfig>,
  Section<ModelConfig>,
  Section<ParallelConfig>,
  Section<HostConfig>,
  Section<TrainConfig>,
  Section<OutputConfig>,
] = [dataSection, modelSection, parallelSection, hostSection, trainSection, outputSection];

/** What a step depends on, besides its model. */
export type StepConfig = Pick<DataConfig, "sequenceLength"> & ParallelConfig & TrainConfig;

/** A resolved training configuration. */
export type RunConfig = DataConfig & ModelConfig & StepConfig & HostConfig & OutputConfig;
