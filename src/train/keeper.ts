/**
 * The copies of a run's state that outlive its ranks: checkpoints in the memory of its hosts.
 *
 * Note [Copies over hosts]: each host's folder has the state of its own ranks, and launchers send it to the next host while training
 * goes on. A host has its last two states, and begins no third one before the next host has the last: so at any moment all hosts have
 * one step's state together, whichever of them is lost. A state that would come too early is left out.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { saveOnHosts } from "../checkpoint/sharded/save_on_hosts.ts";
import type { SaveCheckpointOptions } from "../checkpoint/sharded/save_plan.ts";
import { float32 } from "../dtype.ts";
import { sleep } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import type { ElasticRun } from "./elastic.ts";
import type { OutputConfig } from "./output_config.ts";
import type { ProgressOutput } from "./progress.ts";
import { CheckpointSaver } from "./saver.ts";
import type { StepContext } from "./step.ts";

/** Bytes of a rank's state from which a Worker writes it while training goes on; a smaller one is written before a Worker has started. */
const LARGE_BYTES = 2 ** 25;

/** Numbers of each trained element: its weight and two states. */
const NUMBERS = 3;

/** Longest wait for the next host before ranks leave, and the pause between two looks. */
const [COPY_MS, LOOK_MS] = [10_000, 5] as const;

type KeptState = Pick<SaveCheckpointOptions, "step" | "state" | "environment">;

/** Keeps a run's state in memory. */
export interface StateKeeper extends Disposable {
  /**
   * Keeps the state of a step, if it is its turn. Every rank must call it.
   *
   * @param isLast true if ranks leave
   * @returns true if it is kept, the same on every rank
   */
  keep(step: number, isLast: boolean, state: () => KeptState): Promise<boolean>;
  /** Waits until the last state is kept. Every rank must call it. */
  finish(): Promise<void>;
}

/** Keeps the state of one host's ranks. */
class HostKeeper implements StateKeeper {
  readonly #saver: CheckpointSaver;
  readonly #every: number;

  constructor(context: StepContext, config: OutputConfig, kept: string, every: number, log: Logger) {
    this.#every = every;
    let elements = 0;
    for (const [, { numel }] of trainedPart(context.model).namedParameters()) elements += numel;
    // The same on every rank, though shards may not be equally large.
    const asyncSave = elements * NUMBERS * float32.byteLength / context.group.size >= LARGE_BYTES;
    const how = { ...config, out: kept, keepLast: 1, asyncSave, stateDictType: "sharded" } as const;
    this.#saver = new CheckpointSaver(context, how, log.withLevel("warn"), () => Promise.resolve());
  }

  async keep(step: number, isLast: boolean, state: () => KeptState): Promise<boolean> {
    const isTurn = isLast || step % this.#every === 0;
    if (isTurn) await this.#saver.save(state());
    return isTurn;
  }

  async finish(): Promise<void> {
    await this.#saver.finishPending();
  }

  [Symbol.dispose](): void {
    this.#saver[Symbol.dispose]();
  }
}

/** Keeps the state of several hosts: see Note [Copies over hosts]. */
class HostsKeeper implements StateKeeper {
  readonly #context: StepContext;
  readonly #elastic: ElasticRun;
  readonly #every: number;
  readonly #isFirst: boolean;
  readonly #output: ProgressOutput;
  #kept = -1;

  constructor(context: StepContext, elastic: ElasticRun, every: number, output: ProgressOutput) {
    this.#context = context;
    this.#elastic = elastic;
    this.#every = every;
    this.#output = output;
    const { group } = context;
    const folders = group.exchangeText(elastic.kept, "folders in memory");
    this.#isFirst = folders.indexOf(elastic.kept) === group.rank;
  }

  async keep(step: number, isLast: boolean, state: () => KeptState): Promise<boolean> {
    if (!isLast && step % this.#every !== 0) return false;
    if (!await this.#isCopied(isLast ? COPY_MS : 0)) return false;
    const { model, optimizer, group } = this.#context;
    const what = { model: trainedPart(model), optimizer, group, directory: this.#elastic.kept, keepLast: 2 };
    await saveOnHosts({ ...state(), ...what }, this.#isFirst);
    this.#kept = step;
    if (this.#isFirst) this.#output.elastic?.({ kept: step });
    return true;
  }

  finish(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.dispose](): void {}

  /** True if each host's last state is on the next host, the same on all ranks; waits for it so long. */
  async #isCopied(longestMs: number): Promise<boolean> {
    const end = performance.now() + longestMs;
    for (;;) {
      const own = !this.#isFirst || this.#elastic.copiedStep() >= this.#kept
        ? "yes"
        : performance.now() < end
        ? "wait"
        : "no";
      const answers = this.#context.group.exchangeText(own, "copies of the state");
      if (answers.every((answer) => answer === "yes")) return true;
      if (answers.includes("no")) return false;
      await sleep(LOOK_MS);
    }
  }
}

/** The keeper of a run whose ranks may change; undefined if its state is not kept in memory. */
export function keeperOf(
  context: StepContext,
  config: OutputConfig,
  elastic: ElasticRun | undefined,
  log: Logger,
  output: ProgressOutput,
): StateKeeper | undefined {
  if (elastic?.every === undefined) return undefined;
  return elastic.hasHosts
    ? new HostsKeeper(context, elastic, elastic.every, output)
    : new HostKeeper(context, config, elastic.kept, elastic.every, log);
}
