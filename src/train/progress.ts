/**
 * What a person sees of a run: a live status line on a terminal, otherwise one plain line each few steps.
 *
 * @module
 */
import { formatDuration } from "../runtime/clock.ts";
import { formatBytes } from "../words.ts";
import type { StepMetrics } from "./metrics.ts";

/** Where progress goes. */
export interface ProgressOutput {
  /** Prints a line. */
  line(text: string): void;
  /** Shows a status in place of the last one; undefined where there is no terminal. */
  readonly status: ((text: string) => void) | undefined;
  /** Takes that all is saved, and the run only ends. */
  readonly over?: (() => void) | undefined;
}

/** Shows the steps of a run, until it is disposed. */
export class Progress implements Disposable {
  readonly #output: ProgressOutput;
  readonly #steps: number;
  readonly #every: number;
  /** Seconds of recent steps: what the time left is told from. */
  readonly #recent: number[] = [];

  /** @param steps steps in all @param every steps from one printed line to the next */
  constructor(output: ProgressOutput, steps: number, every: number) {
    this.#output = output;
    this.#steps = steps;
    this.#every = every;
  }

  /** Shows a step that took `seconds`. */
  step(metrics: StepMetrics, seconds: number): void {
    this.#recent.push(seconds);
    if (this.#recent.length > 20) this.#recent.shift();
    const mean = this.#recent.reduce((sum, value) => sum + value, 0) / this.#recent.length;
    const {
      step,
      loss,
      eval_loss: held,
      learning_rate: rate,
      grad_norm: norm,
      tokens_per_second: speed,
      peak_bytes: peak,
    } = metrics;
    const left = `${formatDuration(Math.ceil(mean * (this.#steps - step)) * 1000)} left`;
    const place = `step ${step}/${this.#steps}`;
    const facts = [
      `loss ${loss.toFixed(4)}`,
      ...held === undefined ? [] : [`eval loss ${held.toFixed(4)}`],
      `lr ${rate.toExponential(2)}`,
      `norm ${norm.toFixed(3)}`,
      `${Math.round(speed)} tokens/s`,
    ];
    const { status, line } = this.#output;
    // A narrow terminal shows the first of them. What is said by the status line need not be said above it.
    status?.([place, left, ...facts, formatBytes(peak)].join("  "));
    const isLast = step === this.#steps;
    const rest = status === undefined ? [formatBytes(peak), ...isLast ? [] : [left]] : [];
    if (held !== undefined || step % this.#every === 0 || step === 1 || isLast) {
      line([place, ...facts, ...rest].join("  "));
    }
  }

  /** Takes the status line away. */
  [Symbol.dispose](): void {
    this.#output.status?.("");
  }
}
