/**
 * A training run as its caller sees it: what it is given besides its configuration, and how it ended.
 *
 * @module
 */
import type { Logger } from "../runtime/log.ts";
import type { StopSignal } from "../runtime/signals.ts";
import type { StepMetrics } from "./metrics.ts";
import type { ProgressOutput } from "./progress.ts";
import type { StepContext } from "./step.ts";

/** What a run is given besides its configuration. */
export interface TrainerOptions {
  /** The model to train from scratch, as a Hugging Face config. @default the one in `config.model` */
  readonly hfConfig?: Readonly<Record<string, unknown>> | undefined;
  /** Takes what is worth knowing. */
  readonly log: Logger;
  /** Where steps are shown. */
  readonly output: ProgressOutput;
  /**
   * Called on every rank after each step, and awaited: for metrics of your own, an evaluation, a changed weight. If it gives
   * `"stop"` on any rank, all ranks stop after this step, with a checkpoint, as they do after a signal.
   */
  readonly onStep?:
    | ((metrics: StepMetrics, context: StepContext) => void | "stop" | Promise<void | "stop">)
    | undefined;
}

/** How a run ended. */
export interface TrainResult {
  /** Steps taken in all. */
  readonly step: number;
  /** The last step's loss; NaN if none was taken. */
  readonly loss: number;
  /** What the trained model was made into; `undefined` if the run stopped before its last step. */
  readonly finished: FinishedModel | undefined;
  /** The signal that stopped the run. */
  readonly signal: StopSignal | undefined;
  /** Whether this is the rank that speaks for all. */
  readonly isMain: boolean;
}

/** What a run makes of its model. */
export interface FinishedModel {
  /** The Hugging Face folder that was written. */
  readonly folder: string;
  /** A prompt with what the trained model went on with; undefined where `sampleTokens` is 0. */
  readonly sample: string | undefined;
}
