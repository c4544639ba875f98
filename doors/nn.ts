/**
 * Modules, parameters, and what models are made of: layers, functions, operations of your own, optimizers of your own.
 *
 * @module
 */

export { type ForwardHook, type ForwardPreHook, type HookHandle, Module } from "../src/nn/module.ts";
export { SAVEABLE_OPS } from "../src/nn/activation_checkpointing.ts";
export { ModuleDict, ModuleList } from "../src/nn/container.ts";
export { Linear, type LinearEnds, type LinearOptions } from "../src/nn/linear.ts";
export { Embedding, type EmbeddingOptions } from "../src/nn/embedding.ts";
export { Dropout, type RandomContext } from "../src/nn/dropout.ts";
export { LayerNorm, RMSNorm, type RMSNormOptions } from "../src/nn/norm.ts";
export { CacheSlot, GenerationCache, KeyValues } from "../src/nn/cache.ts";
export {
  attention,
  binaryCrossEntropyWithLogits,
  cat,
  causalConv,
  crossEntropy,
  gatedDeltaRule,
  IGNORE_INDEX,
  l1Loss,
  linearCrossEntropy,
  type LossTerms,
  mseLoss,
  type Reduction,
  rope,
  scoresOfLogits,
  stack,
  swiglu,
  type TokenScores,
  tokenScores,
  where,
} from "../src/nn/functional.ts";
export { initializeParameters } from "../src/nn/initialize.ts";
export type { WeightLayout } from "../src/ops/matmul.ts";
export type { AttentionAttrs } from "../src/ops/attention.ts";
export type { DropoutAttrs, RandomStream } from "../src/ops/dropout.ts";
export type { RopeOptions } from "../src/ops/rope.ts";
export type { GatedDeltaAttrs } from "../src/ops/gated_delta.ts";
export { type Init, Parameter, type ParameterOptions } from "../src/tensor/parameter.ts";
export type { Quantization, QuantizedDType } from "../src/quantized.ts";
export type { FlatShard, GradientReducer, ParameterStorage } from "../src/tensor/parameter_storage.ts";
export type { NormReducer } from "../src/tensor/norm_reducer.ts";
export type { CutRule, Placement, PlacementAxis } from "../src/tensor/cut.ts";
export type { Owners } from "../src/tensor/owners.ts";
export { type BufferOptions, BufferTensor } from "../src/tensor/buffer_tensor.ts";
export type { Box, ShardLayout } from "../src/tensor/shard_layout.ts";
export { ownedPtr, writeParameters } from "../src/tensor/write.ts";
export {
  arange,
  type ArangeOptions,
  type CreateOptions,
  full,
  ones,
  onesLike,
  rand,
  randn,
  zeros,
  zerosLike,
} from "../src/tensor/create.ts";
export type { BackwardOptions } from "../src/tensor/backward.ts";
export type { AlongDimsMethods } from "../src/tensor/along_dims.ts";
export type { ElementwiseMethods } from "../src/tensor/elementwise.ts";
export type { HostArray } from "../src/tensor/host.ts";
export type { Scope } from "../src/tensor/scope.ts";
export type { Layout, Shape } from "../src/shape.ts";
export type { GradientSink } from "../src/autograd/node.ts";
export type { BackwardCall, ComputeOp, ForwardCall, OpContext, OutputSpec, ViewOp } from "../src/ops/op.ts";
export { apply, applyOne, applyView } from "../src/tensor/apply.ts";
export type { ClipOptions, NormOptions } from "../src/optim/clip.ts";
export type { GradScalerOptions, GradScalerSettings, GradScalerState } from "../src/optim/grad_scaler.ts";
export type { NormType } from "../src/optim/norm.ts";
export type { AdamWSettings } from "../src/optim/adamw.ts";
export type { SGDSettings } from "../src/optim/sgd.ts";
export type { LionSettings } from "../src/optim/lion.ts";
export type { ADJUST_LR, AdjustLr, MuonSettings } from "../src/optim/muon.ts";
export type { AdafactorSettings } from "../src/optim/adafactor.ts";
export type { Coefficients } from "../src/optim/newton_schulz.ts";
export type { StateMemory } from "../src/optim/state_memory.ts";
export type { BucketMember, BucketState, StateBucket } from "../src/optim/states.ts";
export type { ShardMessage, Sharers, SharingRanks } from "../src/tensor/parameter_storage.ts";
export type { OptimizerSettings, ParamGroup } from "../src/optim/groups.ts";
export { Optimizer } from "../src/optim/optimizer.ts";
export type { RecordSettings, StateSpec, UpdateArgs, UpdateCall, UpdateRule } from "../src/optim/rule.ts";
export type { OptimizerStateView } from "../src/optim/states.ts";
export type { WorkBuffer, WorkMemory } from "../src/optim/work_memory.ts";
export type {
  InverseSqrtOptions,
  PolynomialOptions,
  RestartOptions,
  SCHEDULE_NAMES,
  ScheduleName,
  ScheduleOptions,
  WarmupStableDecayOptions,
} from "../src/optim/schedule.ts";
export { buildModel, FAMILIES, type ModelFamily } from "../src/models/registry.ts";
export type { ModelFiles } from "../src/models/causal_lm.ts";
export type { UnitDescription } from "../src/train/describe.ts";
export type { DtypeLedger } from "../src/parallel/precision.ts";
export type { FsdpUnit } from "../src/fsdp/unit.ts";

// Types that the types above refer to.
export type { RandomSource } from "../src/random.ts";
export type { PassMember } from "../src/autograd/engine.ts";
export type { LayerContext } from "../src/nn/attention.ts";
export type { HeadOutput } from "../src/nn/head.ts";
export { type Carried, ModelSection } from "../src/nn/section.ts";
export type { SharedNorm } from "../src/nn/norm.ts";
export type { ModuleContainer } from "../src/nn/container.ts";
export type { BoundaryDtypes, ForwardWrapper, ModuleMember } from "../src/nn/module.ts";
export type { OpCall } from "../src/ops/op.ts";
export type { GradientListener } from "../src/tensor/parameter.ts";
export type { ComputeView, StorageKind } from "../src/tensor/parameter_storage.ts";
export type { ModelSource } from "../src/train/open_model.ts";
