/**
 * The copies of a run's state that outlive its ranks: checkpoints in the host's memory, the newest complete one and the one that is
 * being written.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import type { SaveCheckpointOptions } from "../checkpoint/sharded/save_plan.ts";
import { float32 } from "../dtype.ts";
import type { Logger } from "../runtime/log.ts";
import type { ElasticRun } from "./elastic.ts";
import type { OutputConfig } from "./output_config.ts";
import { CheckpointSaver } from "./saver.ts";
import type { StepContext } from "./step.ts";

/** Bytes of a rank's state from which a Worker writes it while training goes on; a smaller one is written before a Worker has started. */
const LARGE_BYTES = 2 ** 25;

/** Numbers of each trained element: its weight and two states. */
const NUMBERS = 3;

/** Keeps a run's state in memory. */
export class StateKeeper implements Disposable {
  readonly #saver: CheckpointSaver;
  readonly #every: number;
  #kept = -1;

  /** @throws {OutOfMemoryError} if the state is large and there is no memory for a copy */
  constructor(context: StepContext, config: OutputConfig, kept: string, every: number, log: Logger) {
    this.#every = every;
    let elements = 0;
    for (const [, { numel }] of trainedPart(context.model).namedParameters()) elements += numel;
    // The same on every rank, though shards may not be equally large.
    const asyncSave = elements * NUMBERS * float32.byteLength / context.group.size >= LARGE_BYTES;
    const how = { ...config, out: kept, keepLast: 1, asyncSave, stateDictType: "sharded" } as const;
    this.#saver = new CheckpointSaver(context, how, log.withLevel("warn"), () => Promise.resolve());
  }

  /** True if the state of a step is to be kept. */
  wants(step: number, isLast: boolean): boolean {
    return step !== this.#kept && (isLast || step % this.#every === 0);
  }

  /** Keeps the state of a step, or begins to. Every rank must call it. */
  async keep(state: Pick<SaveCheckpointOptions, "step" | "state" | "environment">): Promise<void> {
    this.#kept = state.step;
    await this.#saver.save(state);
  }

  /** Waits until the last state is kept. Every rank must call it. */
  async finish(): Promise<void> {
    await this.#saver.finishPending();
  }

  /** Gives up a copy that is being written. */
  [Symbol.dispose](): void {
    this.#saver[Symbol.dispose]();
  }
}

/** The keeper of a run whose ranks may change; undefined if its state is not kept in memory. */
export function keeperOf(
  context: StepContext,
  config: OutputConfig,
  elastic: ElasticRun | undefined,
  log: Logger,
): StateKeeper | undefined {
  return elastic?.every === undefined ? undefined : new StateKeeper(context, config, elastic.kept, elastic.every, log);
}
