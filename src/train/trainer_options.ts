/**
 * Inputs of a training besides its configuration, and its result.
 *
 * @module
 */
import type { Logger } from "../runtime/log.ts";
import type { StopSignal } from "../runtime/signals.ts";
import type { ProgressOutput } from "./progress.ts";
import type { TrainerCallback } from "./trainer_callbacks.ts";

/** Inputs of a training besides its configuration. */
export interface TrainerOptions {
  /** The model to train from scratch, as a Hugging Face config. @default the one in `config.model` */
  readonly hfConfig?: Readonly<Record<string, unknown>> | undefined;
  /** Origins of the keys that were set, such as `--steps`, for the run record. @default not known */
  readonly set?: Readonly<Record<string, string>> | undefined;
  /** Receives notices for the user. */
  readonly log: Logger;
  /** Shows the steps. */
  readonly output: ProgressOutput;
  /**
   * Called on every rank after each step, and awaited: for own metrics, an evaluation, changed weights. If it returns
   * `"stop"` on any rank, all ranks save a checkpoint and stop after this step, as after a signal.
   */
  readonly onStep?: TrainerCallback["onStep"];
  /** Called at steps, evaluations and saves, after `onStep`. @default none */
  readonly callbacks?: readonly TrainerCallback[] | undefined;
}

/** The best evaluation of a training, by the metric that `metricForBestModel` names. */
export interface BestModel {
  /** Name of the metric in `metrics.jsonl`. */
  readonly metric: string;
  /** The metric's best value. */
  readonly bestMetric: number;
  /** The step after which it was measured. */
  readonly bestGlobalStep: number;
  /** Path of the checkpoint of that step; undefined if none was saved. */
  readonly bestModelCheckpoint: string | undefined;
}

/** Result of a training. */
export interface TrainResult {
  /** Number of steps taken, with those before a resume. */
  readonly step: number;
  /** The last step's loss; NaN if none was taken. */
  readonly loss: number;
  /** The finished model; `undefined` if the training stopped before its last step, unless evaluations were no better any more. */
  readonly finished: FinishedModel | undefined;
  /** The best evaluation, if there was one with a metric that decides. */
  readonly best: BestModel | undefined;
  /** The signal that stopped the training. */
  readonly signal: StopSignal | undefined;
  /** True for the rank that prints for all. */
  readonly isMain: boolean;
}

/** Files and text made from the trained model. */
export interface FinishedModel {
  /** Hugging Face folder of the model. */
  readonly folder: string;
  /** A prompt, continued by the trained model; undefined if `sampleTokens` is 0. */
  readonly sample: string | undefined;
}
