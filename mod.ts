/**
 * Fully sharded data-parallel training for TypeScript: PyTorch FSDP2's semantics on Bun and Deno.
 *
 * Importing this does nothing: no library is opened and no variable read until a function is called.
 *
 * The other doors: `fullyshard/nn` (modules, parameters, operations), `/device`, `/comm`, `/checkpoint`, `/data`, `/config`
 * (flags and the trainer), `/errors`, `/testing`.
 *
 * @example
 * ```ts
 * import { launch } from "fullyshard";
 * await using run = await launch();
 * if (run.group.size !== 1) throw new Error("no launcher, so one rank");
 * ```
 *
 * @module
 */

export { launch, type LaunchOptions, type LogValues, type Run } from "./src/train/run.ts";
export type { SamplePart } from "./src/train/axes.ts";
export { openModel, type OpenModelOptions } from "./src/train/open_model.ts";
export { TextData, textData, type TextDataOptions } from "./src/train/text_data.ts";
export type { LossPart } from "./src/data/chat/encode_row.ts";
export { CausalLm, type CausalLmInputs, type ModelParts } from "./src/models/causal_lm.ts";
export { addLora, Lora, type LoraOptions, type LoraSettings } from "./src/adapters/lora.ts";
export { type QuantizationOptions, quantizeModel } from "./src/adapters/quantize.ts";
export { saveAdapter, type SaveAdapterOptions } from "./src/adapters/files.ts";
export { mergeLora } from "./src/adapters/merge.ts";
export type { TargetOptions } from "./src/adapters/targets.ts";
export type { EmbeddingLora, LinearLora, LoraFactors, LoraLayer, LoraLayerOptions } from "./src/adapters/lora_layer.ts";
export type { Batch } from "./src/data/micro_batch.ts";
export { fullyShard } from "./src/fsdp/fully_shard.ts";
export {
  FullyShardedModule,
  type RecurseOptions,
  registerFsdpForwardMethod,
  shareCommContext,
  UnshardHandle,
  type UnshardOptions,
} from "./src/fsdp/handle.ts";
export { type CpuOffloadOptions, cpuOffloadPolicy, type OffloadPolicy } from "./src/parallel/offload.ts";
export type {
  AllGatherCall,
  CustomCollectives,
  FullyShardOptions,
  GatherContext,
  GatherExtension,
  GatherInputs,
  ReduceScatterCall,
  ReshardAfterForward,
} from "./src/fsdp/policy.ts";
export type { MixedPrecision } from "./src/parallel/precision.ts";
export { replicate, ReplicatedModule, type ReplicateOptions } from "./src/ddp/replicate.ts";
export { type ContextCommStrategy, parallelizeContext, type ParallelizeContextOptions } from "./src/axes/context.ts";
export { parallelizePipeline, type Pipeline, type PipelineOptions, type PipelineStage } from "./src/axes/pipeline.ts";
export type { PipelineSchedule } from "./src/axes/pipeline_schedule.ts";
export type { PipelineSplit } from "./src/axes/pipeline_split.ts";
export { expertsOf, parallelizeExperts } from "./src/axes/experts.ts";
export { parallelizeModule, type ParallelizePlan } from "./src/axes/parallelize.ts";
export type { Style, StyleName, STYLES } from "./src/axes/styles.ts";
export {
  type ActivationCheckpointingOptions,
  applyActivationCheckpointing,
  type SaveableOp,
} from "./src/nn/activation_checkpointing.ts";
export type {
  AutoPlan,
  FsdpPlan,
  LambdaPlan,
  ManualPlan,
  NoPlan,
  SizePlan,
  TransformerPlan,
  UNIT_OPTIONS,
  UnitOption,
} from "./src/plans/plan.ts";
export { shardModel, type ShardModelOptions } from "./src/plans/shard_model.ts";
export { tensorPlanOf, type TensorPlanOptions } from "./src/plans/tensor_plan.ts";
export {
  type DescribeOptions,
  describeSharding,
  type ShardingDescription,
  type UnitDescription,
} from "./src/train/describe.ts";
export { AdamW, type AdamWOptions } from "./src/optim/adamw.ts";
export { SGD, type SGDOptions } from "./src/optim/sgd.ts";
export { Lion, type LionOptions } from "./src/optim/lion.ts";
export { Muon, type MuonOptions } from "./src/optim/muon.ts";
export { Adafactor, type AdafactorOptions } from "./src/optim/adafactor.ts";
export { AdamW8bit } from "./src/optim/adamw8bit.ts";
export type { ParamGroupOptions } from "./src/optim/groups.ts";
export { clipGradNorm, gradNorm } from "./src/optim/clip.ts";
export { GradScaler } from "./src/optim/grad_scaler.ts";
export {
  constant,
  cosine,
  cosineWithRestarts,
  inverseSqrt,
  linear,
  polynomial,
  type Schedule,
  type ScheduleFunction,
  warmupStableDecay,
} from "./src/optim/schedule.ts";
export { Tensor } from "./src/tensor/tensor.ts";
export { tensor } from "./src/tensor/create.ts";
export { scope } from "./src/tensor/scope.ts";
export { noGrad } from "./src/autograd/mode.ts";
export { bfloat16, type DType, float16, float32, int32 } from "./src/dtype.ts";
export { type DryRun, dryRun, type DryRunOptions } from "./src/train/dry_run.ts";
export { evaluate, type Evaluation } from "./src/train/evaluate.ts";
export { generate, type GenerateOptions } from "./src/train/generate.ts";
