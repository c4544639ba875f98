/**
 * `metrics.jsonl`: one object a step, written as training goes, cut back to the checkpoint when a run resumes. A run that
 * fails before its first step touches neither the file nor its folder.
 *
 * @module
 */
import { METRICS_FILE } from "../report/run_files.ts";
import {
  makeDirectory,
  openWritable,
  pathKind,
  readTextSync,
  replaceFile,
  type WritableFile,
} from "../runtime/files.ts";
import type { DistillationFigures } from "./distillation_step.ts";
import type { LabeledFigures } from "./labeled_figures.ts";
import type { PreferenceFigures } from "./preference_figures.ts";

/** Metrics of an evaluation by their names: `eval_loss`, or `eval_NAME_loss` of a set with a name, `…perplexity` and so on. */
export type EvalMetrics = { readonly [name: `eval_${string}`]: number };

/** One line of `metrics.jsonl`; on steps that were evaluated, with metrics as {@link EvalMetrics} has them. */
export interface StepMetrics
  extends EvalMetrics, Partial<PreferenceFigures>, Partial<Pick<LabeledFigures, "kl">>, Partial<DistillationFigures> {
  /** The step's number, from 1. */
  readonly step: number;
  /** Mean cross-entropy of the step's tokens, in nats; of preferences the mean loss of pairs. */
  readonly loss: number;
  /** Learning rate of the schedule for the step. */
  readonly learning_rate: number;
  /** Norm before clipping. */
  readonly grad_norm: number;
  /** Over all ranks. */
  readonly tokens_per_second: number;
  /** End of the step: seconds since the epoch. */
  readonly wall_time: number;
  /** Peak of this rank's memory so far, in bytes. */
  readonly peak_bytes: number;
}

/** Appends the metrics of a run. */
export class MetricsFile implements Disposable {
  readonly #folder: string;
  readonly #lastStep: number;
  #file: WritableFile | undefined;

  /**
   * @param folder folder of the run; it is made with the first line, and so is the file
   * @param lastStep lines of later steps are then dropped; 0 drops all
   */
  constructor(folder: string, lastStep: number) {
    this.#folder = folder;
    this.#lastStep = lastStep;
  }

  /** Adds the line of a step. */
  write(metrics: StepMetrics): void {
    this.#file ??= this.#open();
    this.#file.write(`${JSON.stringify(metrics)}\n`);
  }

  #open(): WritableFile {
    const [path, last] = [`${this.#folder}/${METRICS_FILE}`, this.#lastStep];
    makeDirectory(this.#folder);
    const before = last > 0 && pathKind(path) === "file" ? readTextSync(path) : "";
    const kept = before.split("\n").filter((line) => line !== "" && stepOf(line) <= last);
    replaceFile(path, kept.map((line) => `${line}\n`).join(""));
    return openWritable(path, "append");
  }

  [Symbol.dispose](): void {
    this.#file?.[Symbol.dispose]();
  }
}

/** The last step that a run's metrics have; 0 if there are none. */
export function lastStepOf(folder: string): number {
  const path = `${folder}/${METRICS_FILE}`;
  const lines = pathKind(path) === "file" ? readTextSync(path).split("\n") : [];
  return Math.max(0, ...lines.slice(-2).map(stepOf).filter(Number.isFinite));
}

/** The step of a line; Infinity for a line that a crash cut off. */
function stepOf(line: string): number {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === "object" && value !== null && "step" in value && typeof value.step === "number"
      ? value.step
      : Infinity;
  } catch {
    return Infinity;
  }
}
