/**
 * The display of a run's progress: a live status line on a terminal, otherwise one plain line every few steps.
 *
 * @module
 */
import { formatDuration } from "../runtime/clock.ts";
import { formatBytes } from "../words.ts";
import type { StepMetrics } from "./metrics.ts";

/** Destination of progress. */
export interface ProgressOutput {
  /** Prints a line. */
  line(text: string): void;
  /** Shows a status in place of the last one; undefined without a terminal. */
  readonly status: ((text: string) => void) | undefined;
  /** Called when everything is saved, and the run only has to end. */
  readonly over?: (() => void) | undefined;
  /** Tells the launcher what it needs to start ranks again; undefined without one. */
  readonly elastic?:
    | ((
      news: { readonly worldSizes: readonly number[]; readonly out: string } | { readonly begun: true } | {
        readonly kept: number;
      } | {
        readonly regroups: true;
      } | { readonly stays: true },
    ) => void)
    | undefined;
}

/** Shows the steps of a run, until it is disposed. */
export class Progress implements Disposable {
  readonly #output: ProgressOutput;
  readonly #steps: number;
  readonly #every: number;
  /** Seconds of recent steps, from which the remaining time is estimated. */
  readonly #recent: number[] = [];

  /** @param steps total number of steps @param every steps between two printed lines */
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
      learning_rate: rate,
      grad_norm: norm,
      tokens_per_second: speed,
      peak_bytes: peak,
    } = metrics;
    const held = Object.entries(metrics).flatMap(([name, value]) => {
      const [, set = ""] = /^eval_(.*_)?loss$/.exec(name) ?? [];
      return /^eval_(?:.*_)?loss$/.test(name) ? [`eval ${set.replace(/_$/, " ")}loss ${value.toFixed(4)}`] : [];
    });
    const left = `${formatDuration(Math.ceil(mean * (this.#steps - step)) * 1000)} left`;
    const place = `step ${step}/${this.#steps}`;
    const facts = [
      `loss ${loss.toFixed(4)}`,
      ...held,
      `lr ${rate.toExponential(2)}`,
      `norm ${norm.toFixed(3)}`,
      `${Math.round(speed)} tokens/s`,
    ];
    const { status, line } = this.#output;
    // A narrow terminal shows only the first fields. The plain line omits fields that the status line shows.
    status?.([place, left, ...facts, formatBytes(peak)].join("  "));
    const isLast = step === this.#steps;
    const rest = status === undefined ? [formatBytes(peak), ...isLast ? [] : [left]] : [];
    if (held.length > 0 || step % this.#every === 0 || step === 1 || isLast) {
      line([place, ...facts, ...rest].join("  "));
    }
  }

  /** Removes the status line. */
  [Symbol.dispose](): void {
    this.#output.status?.("");
  }
}
