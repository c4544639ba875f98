/**
 * The evaluations of a run: when they are due, which was the best, and its model at the end.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { checkpointPath, stepOfPath } from "../checkpoint/sharded/directory.ts";
import { loadCheckpoint } from "../checkpoint/sharded/load.ts";
import type { DataLoader } from "../data/loader.ts";
import { CheckpointError, ConfigError } from "../errors.ts";
import type { Logger } from "../runtime/log.ts";
import { pathKind } from "../runtime/files.ts";
import { averaged } from "./averaged.ts";
import { BestEvaluation, type BestState, metricOf, type Verdict } from "./best_evaluation.ts";
import type { RunConfig } from "./config.ts";
import { seeksBest } from "./evaluation_config.ts";
import type { HeldOut } from "./held_out.ts";
import type { EvalMetrics } from "./metrics.ts";
import type { Run } from "./run.ts";
import type { StepContext } from "./step.ts";

/** Metrics of an evaluation, and what follows from them. */
export interface Evaluated extends Verdict {
  readonly figures: EvalMetrics;
}

/** Evaluates the model of a run. */
export class Evaluations {
  readonly #config: RunConfig;
  readonly #run: Run;
  readonly #heldOut: HeldOut | undefined;
  readonly #log: Logger;
  readonly #best: BestEvaluation | undefined;
  /** Full epochs behind the last step that was asked for. */
  #epochs = 0;
  #warned = false;

  /** @throws {ConfigError} if the metric that decides is none of the run's, or several sets have one */
  constructor(config: RunConfig, run: Run, heldOut: HeldOut | undefined, log: Logger) {
    [this.#config, this.#run, this.#heldOut, this.#log] = [config, run, heldOut, log];
    if (heldOut === undefined) return;
    const metric = metricOf(config.metricForBestModel, heldOut.names);
    if (metric === undefined && seeksBest(config)) {
      const expected = `one of ${heldOut.names.map((name) => name.replace("eval_", "")).join(", ")}`;
      throw new ConfigError([{ path: "metricForBestModel", expected, got: "nothing, for several sets of evalData" }]);
    }
    this.#best = metric === undefined ? undefined : new BestEvaluation(metric, config);
  }

  /** The best evaluation so far. */
  get best(): BestState | undefined {
    return this.#best?.state;
  }

  /** Path of the checkpoint of the best evaluation, if there is one. */
  get bestCheckpoint(): string | undefined {
    const name = this.best?.best_model_checkpoint;
    return typeof name === "string" ? `${this.#config.out}/${name}` : undefined;
  }

  /**
   * Goes on from a checkpoint.
   *
   * @throws {CheckpointError} if the best model is to be loaded at the end, and its checkpoint is not in the output folder
   */
  restore(state: BestState | undefined, loader: DataLoader): void {
    this.#epochs = epochsOf(loader);
    if (state === undefined || this.#best === undefined) return;
    if (state.metric !== this.#best.metric) {
      const now = `this run compares '${this.#best.metric}'`;
      return this.#log.warn(`The best evaluation so far was by '${state.metric}', ${now}: it begins anew`);
    }
    this.#best.restore(state);
    const path = this.bestCheckpoint;
    if (!this.#config.loadBestModelAtEnd || path === undefined || pathKind(path) === "directory") return;
    const detail =
      "it is the checkpoint of the best evaluation, which is to be loaded at the end, and is not there: copy it, or go " +
      "on without loadBestModelAtEnd";
    throw new CheckpointError(path, detail);
  }

  /** Notes that the model of a step is saved. */
  noteCheckpoint(step: number): void {
    this.#best?.noteCheckpoint(step, checkpointPath("", step).slice(1));
  }

  /** Evaluates after a step, if it is time. Every rank must call it. */
  async after(step: number, context: StepContext, loader: DataLoader): Promise<Evaluated | undefined> {
    const { steps, evalEvery, evalStrategy } = this.#config;
    const epochs = epochsOf(loader);
    const endsEpoch = epochs > this.#epochs;
    this.#epochs = epochs;
    if (this.#heldOut === undefined || evalStrategy === "no") return undefined;
    const isDue = step === steps || (evalStrategy === "epoch" ? endsEpoch : evalEvery > 0 && step % evalEvery === 0);
    if (!isDue) return undefined;
    const heldOut = this.#heldOut;
    const figures = await averaged(context, () =>
      heldOut.evaluate(this.#run, context.model, (text) => {
        if (!this.#warned) this.#log.warn(`After step ${step} ${text}`);
        this.#warned = true;
      }));
    const verdict = this.#best?.take(step, figures[figureName(this.#best.metric)]) ?? { isBest: false, ends: false };
    return { figures, ...verdict };
  }

  /** Tells which evaluation was the best, and loads its weights where they are wanted. Every rank must call it. */
  async end(step: number, { model, optimizer, group }: StepContext): Promise<void> {
    const { best, bestCheckpoint } = this;
    if (best === undefined) return;
    const { out: directory, loadBestModelAtEnd, broadcastFromRank0 } = this.#config;
    const where = bestCheckpoint === undefined ? "" : `, saved as '${bestCheckpoint}'`;
    this.#log.info(`Best evaluation: ${best.metric} ${best.best_metric} after step ${best.best_global_step}${where}`);
    if (!loadBestModelAtEnd || best.best_global_step === step || bestCheckpoint === undefined) return;
    // Averages are states of the optimizer, and become the model.
    const averages = optimizer.hasAverages ? { optimizer } : {};
    const what = { directory, from: bestCheckpoint, model: trainedPart(model), group, broadcastFromRank0, ...averages };
    await loadCheckpoint(what);
    this.#log.info(`Loaded the weights of step ${stepOfPath(bestCheckpoint)}`);
  }
}

/** Full passes over the data; none are counted of data that is streamed. */
function epochsOf({ epoch = 0 }: Pick<DataLoader, "epoch">): number {
  return Math.floor(epoch);
}

function figureName(metric: string): `eval_${string}` {
  return `eval_${metric.slice("eval_".length)}`;
}
