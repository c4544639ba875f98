/**
 * Configured training: flags and files as one configuration, the trainer that follows it, its logs.
 *
 * @module
 */

export { configHelp, resolveConfig, type ResolvedConfig, type ResolveOptions } from "../src/config/resolve.ts";
export { type Section, section, type SectionSchema, type SectionValue } from "../src/config/section.ts";
export { type RunConfig, TRAIN_SECTIONS } from "../src/train/config.ts";
export { type StepContext, type StepResult, trainStep } from "../src/train/step.ts";
export { runTrainingScript, type TrainingScript } from "../src/train/script.ts";
export type { StepMetrics } from "../src/train/metrics.ts";
export { type FinishedModel, runTraining, type TrainerOptions, type TrainResult } from "../src/train/trainer.ts";
export {
  type LogFacts,
  Logger,
  type LoggerOptions,
  type LogLevel,
  type LogRecord,
  type LogSink,
  standardErrorSink,
} from "../src/runtime/log.ts";
