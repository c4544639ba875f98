/**
 * Fully sharded data-parallel training for TypeScript: PyTorch FSDP2's semantics on Bun and Deno.
 *
 * Importing this does nothing: no library is opened and no variable read until a function is called.
 *
 * @example
 * ```ts
 * import { openDevice, openProcessGroup } from "fullyshard";
 * const device = await openDevice("cpu");
 * const group = await openProcessGroup({ device });
 * if (group.size !== 1) throw new Error("no launcher, so one rank");
 * group.dispose();
 * ```
 *
 * @module
 */

// Values, types, errors
export { bfloat16, type DType, dtypeFrom, DTYPES, float32, float64, int32, int64, uint8 } from "./src/dtype.ts";
export {
  type LogFacts,
  Logger,
  type LoggerOptions,
  type LogLevel,
  type LogRecord,
  type LogSink,
  standardErrorSink,
} from "./src/runtime/log.ts";
export type { Layout, Shape } from "./src/shape.ts";
export {
  ArgumentError,
  CheckpointError,
  CollectiveError,
  type CollectiveFacts,
  ConfigError,
  type ConfigProblem,
  DTypeError,
  FileError,
  InternalError,
  LibraryNotFoundError,
  NativeError,
  NonFiniteError,
  OutOfMemoryError,
  RendezvousError,
  ShapeError,
  UnsupportedError,
  UseAfterDisposeError,
} from "./src/errors.ts";
export { keyOf, uniformInt } from "./src/random.ts";

// Devices
export type { Device, DevicePtr, ExactMath } from "./src/device/device.ts";
export type { BinaryOp, ReduceOp, UnaryOp } from "./src/device/kernels/signature.ts";
export type { ArgsOf, KernelName, Kernels } from "./src/device/kernels/table.ts";
export type { DeviceStatus, Fault } from "./src/device/status.ts";
export type { Allocator, MemoryKind, MemoryStats, MemoryTerms } from "./src/device/allocator.ts";
export { type DeviceOptions, openDevice } from "./src/device/registry.ts";
export type { CpuMath, WasmDeviceOptions } from "./src/device/wasm/device.ts";

// Tensors and autograd
export type { GradientSink } from "./src/autograd/node.ts";
export { noGrad } from "./src/autograd/mode.ts";
export { type CreateOptions, full, ones, randn, tensor, zeros } from "./src/tensor/create.ts";
export {
  type Init,
  type NormReducer,
  Parameter,
  type ParameterOptions,
  type ParameterRun,
  type ParameterStorage,
} from "./src/tensor/parameter.ts";
export { type BufferOptions, BufferTensor } from "./src/tensor/buffer_tensor.ts";
export type { Box, ShardLayout } from "./src/tensor/shard_layout.ts";
export { type Scope, scope } from "./src/tensor/scope.ts";
export type { HostArray } from "./src/tensor/host.ts";
export { Tensor } from "./src/tensor/tensor.ts";
export { ownedPtr, writeParameters } from "./src/tensor/write.ts";

// Operations of your own
export type { BackwardCall, ComputeOp, ForwardCall, OpContext, OutputSpec, ViewOp } from "./src/ops/op.ts";
export type { AttentionAttrs } from "./src/ops/attention.ts";
export { apply, applyOne, applyView } from "./src/tensor/apply.ts";

// Modules
export { attention, crossEntropy, IGNORE_INDEX, linearCrossEntropy, rope, swiglu } from "./src/nn/functional.ts";
export { Embedding, type EmbeddingOptions } from "./src/nn/embedding.ts";
export { initializeParameters } from "./src/nn/initialize.ts";
export { Linear, type LinearOptions } from "./src/nn/linear.ts";
export { ModuleDict, ModuleList } from "./src/nn/container.ts";
export { type ForwardHook, type ForwardPreHook, type HookHandle, Module } from "./src/nn/module.ts";
export { LayerNorm, RMSNorm } from "./src/nn/norm.ts";

// Optimizers
export { AdamW, type AdamWOptions, type AdamWSettings } from "./src/optim/adamw.ts";
export { clipGradNorm, type ClipOptions, gradNorm } from "./src/optim/clip.ts";
export {
  Optimizer,
  type OptimizerSettings,
  type OptimizerStateView,
  type ParamGroup,
  type ParamGroupOptions,
  type UpdateArgs,
} from "./src/optim/optimizer.ts";
export {
  constant,
  cosine,
  linear,
  type Schedule,
  type ScheduleName,
  type ScheduleOptions,
} from "./src/optim/schedule.ts";
export { SGD, type SGDOptions, type SGDSettings } from "./src/optim/sgd.ts";

// Communication
export { type AllReduceOptions, ProcessGroup } from "./src/comm/process_group.ts";
export { DeviceMesh, deviceMesh, type MeshShape } from "./src/comm/mesh.ts";
export type { Call, CallKind, Phase } from "./src/comm/call.ts";
export type { ControlPlane } from "./src/comm/control_plane.ts";
export type { DataPlane, ReduceScatterArgs, Run, Work } from "./src/comm/data_plane.ts";
export type { GatherWindow } from "./src/comm/gather_window.ts";
export { type Backend, openProcessGroup, type ProcessGroupOptions } from "./src/comm/registry.ts";
export { openLoopback } from "./src/comm/data/loopback.ts";
export { type RankContext, runLoopback, serveRank } from "./src/comm/loopback_workers.ts";

// Parallelisms
export { replicate, ReplicatedModule, type ReplicateOptions } from "./src/ddp/replicate.ts";
export { fullyShard, FullyShardedModule } from "./src/fsdp/fully_shard.ts";
export { describeSharding, type UnitDescription } from "./src/fsdp/describe.ts";
export type { FsdpUnit } from "./src/fsdp/unit.ts";
export type { FullyShardOptions, MixedPrecision } from "./src/fsdp/policy.ts";

// Models
export { CausalLm, type CausalLmInputs } from "./src/models/causal_lm.ts";
export type { ModelFamily } from "./src/models/family.ts";
export { buildModel, FAMILIES } from "./src/models/registry.ts";

// Data
export { type Batch, DataLoader, type LoaderOptions, type LoaderState, type MicroBatch } from "./src/data/loader.ts";
export { openText, type TextDocument, type TextOptions, type TextSource } from "./src/data/dataset.ts";
export {
  type PackingProgress,
  type TokenCache,
  tokenCache,
  tokensInMemory,
  type TokenStream,
} from "./src/data/packing.ts";
export { loadTokenizer, type Tokenizer } from "./src/data/tokenizer.ts";

// Checkpoints
export { type HfLoadReport, loadHfWeights } from "./src/checkpoint/load_hf.ts";
export { loadCheckpoint, type LoadCheckpointOptions, type LoadedCheckpoint } from "./src/checkpoint/load.ts";
export { saveCheckpoint, type SaveCheckpointOptions, type SavedCheckpoint } from "./src/checkpoint/save.ts";
export { saveHfDirectory, type SaveHfOptions } from "./src/checkpoint/save_hf.ts";

// Training
export { configHelp, resolveConfig, type ResolvedConfig, type ResolveOptions } from "./src/config/resolve.ts";
export { type Section, section, type SectionSchema, type SectionValue } from "./src/config/section.ts";
export { type RunConfig, TRAIN_SECTIONS } from "./src/train/config.ts";
export {
  type CollectiveUse,
  type DryRanks,
  type DryRun,
  dryRun,
  type DryRunOptions,
  type MemoryPeak,
} from "./src/train/dry_run.ts";
export { generate, type GenerateOptions } from "./src/train/generate.ts";
export { readHfConfig } from "./src/train/setup.ts";
export { type StepContext, type StepResult, trainStep } from "./src/train/step.ts";
export { runTrainingScript, type TrainingScript } from "./src/train/script.ts";
export type { StepMetrics } from "./src/train/metrics.ts";
export { type FinishedModel, runTraining, type TrainerOptions, type TrainResult } from "./src/train/trainer.ts";
