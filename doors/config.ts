/**
 * Configured training: flags and files as one configuration, the trainer that follows it, its logs.
 *
 * @module
 */

export { configHelp, resolveConfig, type ResolvedConfig, type ResolveOptions } from "../src/config/resolve.ts";
export { type Section, section, type SectionSchema, type SectionValue } from "../src/config/section.ts";
export { type RunConfig, TRAIN_SECTIONS } from "../src/train/config.ts";
export type { OutputConfig } from "../src/train/output_config.ts";
export { type StepContext, type StepResult, trainStep } from "../src/train/step.ts";
export { StepGraph, type StepTensors } from "../src/train/step_graph.ts";
export {
  type ForeignConfig,
  type ForeignSource,
  readAccelerateConfig,
  readDistributedConfig,
  readFsdpConfig,
} from "../src/accelerate/read.ts";
export { runTrainingScript, type TrainingScript } from "../src/train/script.ts";
export type { EvaluationConfig } from "../src/train/evaluation_config.ts";
export type { EvalMetrics, StepMetrics } from "../src/train/metrics.ts";
export type { DistillationFigures } from "../src/train/distillation_step.ts";
export type { LabeledFigures } from "../src/train/labeled_figures.ts";
export type { PreferenceFigures } from "../src/train/preference_figures.ts";
export { runTraining } from "../src/train/trainer.ts";
export type { CallbackWish, SavedStep, TrainerCallback } from "../src/train/trainer_callbacks.ts";
export type { BestModel, FinishedModel, TrainerOptions, TrainResult } from "../src/train/trainer_options.ts";
export {
  Logger,
  type LoggerOptions,
  type LogLevel,
  type LogRecord,
  type LogSink,
  standardErrorSink,
} from "../src/runtime/log.ts";

// Types that the types above refer to.
export type { Intersection } from "../src/config/resolve.ts";
export type { ConfigFile } from "../src/config/file.ts";
export type { LaunchedRanks } from "../src/accelerate/key.ts";
export type { FilePlan } from "../src/plans/plan.ts";
export type {
  DataConfig,
  ModelConfig,
  ParallelConfig,
  RankConfig,
  StepConfig,
  TrainConfig,
} from "../src/train/config.ts";
export type { HuggingFaceConfig } from "../src/train/hugging_face_config.ts";
export type { ProgressOutput } from "../src/train/progress.ts";
export type { STOP_SIGNALS, StopSignal } from "../src/runtime/signals.ts";
export type { LOG_LEVELS } from "../src/runtime/log.ts";
