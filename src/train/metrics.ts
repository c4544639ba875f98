/**
 * `metrics.jsonl`: one object a step, written as training goes, cut back to the checkpoint when a run resumes.
 *
 * @module
 */
import { openWritable, pathKind, readText, replaceFile, type WritableFile } from "../runtime/files.ts";

/** One line of `metrics.jsonl`. */
export interface StepMetrics {
  /** From 1. */
  readonly step: number;
  /** Mean cross-entropy of the step's tokens, in nats. */
  readonly loss: number;
  /** What the schedule gave for the step. */
  readonly learning_rate: number;
  /** Before clipping. */
  readonly grad_norm: number;
  /** Over all ranks. */
  readonly tokens_per_second: number;
  /** When the step ended: seconds since the epoch. */
  readonly wall_time: number;
  /** Most bytes of this rank's memory in use at once so far. */
  readonly peak_bytes: number;
}

/** Appends metrics to a file. */
export class MetricsFile implements Disposable {
  readonly #file: WritableFile;

  private constructor(file: WritableFile) {
    this.#file = file;
  }

  /**
   * Opens the file of a run.
   *
   * @param path where it lies
   * @param lastStep lines of later steps are dropped: 0 begins anew
   */
  static async open(path: string, lastStep: number): Promise<MetricsFile> {
    const before = lastStep > 0 && pathKind(path) === "file" ? await readText(path) : "";
    const kept = before.split("\n").filter((line) => line !== "" && stepOf(line) <= lastStep);
    replaceFile(path, kept.map((line) => `${line}\n`).join(""));
    return new MetricsFile(openWritable(path, "append"));
  }

  /** Adds the line of a step. */
  write(metrics: StepMetrics): void {
    this.#file.write(`${JSON.stringify(metrics)}\n`);
  }

  [Symbol.dispose](): void {
    this.#file[Symbol.dispose]();
  }
}

/** The step of a line; a line cut off by a crash belongs to none. */
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
