/**
 * Which evaluation of a run was the best, and when none has been better for too long: the rules of the Trainer's `best_metric` and
 * `EarlyStoppingCallback` of `transformers`.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import type { EvaluationConfig } from "./evaluation_config.ts";

/** The best evaluation so far, with the Trainer's names; plain JSON, which checkpoints keep. */
export interface BestState {
  /** The metric that decides, as it is called in `metrics.jsonl`: `eval_loss`. */
  readonly metric: string;
  /** Its best value. */
  readonly best_metric: number;
  /** The step after which it was measured. */
  readonly best_global_step: number;
  /** Name of the checkpoint of that step in the output folder; null if none was saved. */
  readonly best_model_checkpoint: string | null;
  /** Evaluations since the last one that was better than the best before by more than the threshold. */
  readonly evaluations_without_gain: number;
}

/** Consequences of an evaluation: the model is the best so far, or the run stops. */
export interface Verdict {
  readonly isBest: boolean;
  /** True if the training is to end. */
  readonly ends: boolean;
}

/** Names whose values are better when they are smaller. */
const SMALLER_IS_BETTER = /(?:loss|perplexity)$/;

/** The best evaluation of a run. */
export class BestEvaluation {
  /** The metric that decides, as it is called in `metrics.jsonl`. */
  readonly metric: string;
  readonly #greaterIsBetter: boolean;
  readonly #patience: number;
  readonly #threshold: number;
  #state: BestState | undefined;

  /** @param metric from {@link metricOf} */
  constructor(metric: string, config: EvaluationConfig) {
    this.metric = metric;
    this.#greaterIsBetter = config.greaterIsBetter ?? !SMALLER_IS_BETTER.test(metric);
    this.#patience = config.earlyStoppingPatience ?? Infinity;
    this.#threshold = config.earlyStoppingThreshold;
  }

  /** The best so far; undefined before any. */
  get state(): BestState | undefined {
    return this.#state;
  }

  /** Goes on from a checkpoint's state. Ignores a state whose metric (loss, accuracy, …) is another. */
  restore(state: BestState): void {
    if (state.metric === this.metric) this.#state = state;
  }

  /**
   * Takes an evaluation.
   *
   * @param value of the metric; NaN, or undefined as no number could be measured, is never better
   */
  take(step: number, value: number | undefined): Verdict {
    const before = this.#state;
    const gain = before === undefined || value === undefined
      ? Infinity
      : this.#greaterIsBetter
      ? value - before.best_metric
      : before.best_metric - value;
    const isNumber = value !== undefined && !Number.isNaN(value);
    const isBest = isNumber && gain > 0;
    const without = isNumber && gain > this.#threshold ? 0 : (before?.evaluations_without_gain ?? 0) + 1;
    if (isBest) {
      this.#state = {
        metric: this.metric,
        best_metric: value,
        best_global_step: step,
        best_model_checkpoint: null,
        evaluations_without_gain: without,
      };
    } else if (before !== undefined) this.#state = { ...before, evaluations_without_gain: without };
    return { isBest, ends: without >= this.#patience };
  }

  /** Notes that the checkpoint of a step is there, or is about to be. */
  noteCheckpoint(step: number, name: string): void {
    if (this.#state?.best_global_step === step) this.#state = { ...this.#state, best_model_checkpoint: name };
  }
}

/**
 * The name in `metrics.jsonl` of the metric that decides.
 *
 * @param given as the configuration has it, with or without `eval_`
 * @param available names of all metrics
 * @returns undefined if none is named, and it is not clear which
 * @throws {ConfigError} if there is no such metric
 */
export function metricOf(given: string | undefined, available: readonly string[]): string | undefined {
  if (given !== undefined) {
    const name = given.startsWith("eval_") ? given : `eval_${given}`;
    if (available.includes(name)) return name;
    const expected = `one of ${available.map((one) => one.slice("eval_".length)).join(", ")}`;
    throw new ConfigError([{ path: "metricForBestModel", expected, got: `'${given}'` }]);
  }
  const losses = available.filter((name) => name.endsWith("loss"));
  return losses.includes("eval_loss") ? "eval_loss" : losses.length === 1 ? losses[0] : undefined;
}
