/**
 * Saving while training goes on: what a rank writes is copied, and a Worker writes the copy. The files are those of a save that
 * blocks, byte for byte, and appear in the same order.
 *
 * Note [Failures of a save]: a Worker that fails says so in shared words. A rank that awaits the save gets the error, and so do the
 * other ranks; a rank that does not await it finds the words before its next collective, stops all ranks, and throws there. Where no
 * collective follows, the error ends the program as one that nobody catches.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { at } from "../../at.ts";
import { type FolderLock, lockFolderNow } from "../../locks/folder_lock.ts";
import type { ProcessGroup } from "../../comm/process_group.ts";
import { ArgumentError } from "../../errors.ts";
import { removeQuietly } from "../../runtime/files.ts";
import { onProgramEnd } from "../../runtime/signals.ts";
import { beginCheckpoint } from "./directory.ts";
import { addPending } from "./pending.ts";
import {
  planSave,
  SAVE_OPTIONS,
  type SaveCheckpointOptions,
  type SavedCheckpoint,
  type SavePlan,
} from "./save_plan.ts";
import { SaveProgress, type Stage } from "./save_progress.ts";
import type { SaveJob } from "./save_worker.ts";
import type { CheckpointStager } from "./stager.ts";

/** Options of {@link asyncSave}. */
export interface AsyncSaveOptions extends SaveCheckpointOptions {
  /** The group of the ranks that hold the model. */
  readonly group: ProcessGroup;
  /** Memory for the copy that is written. One save at a time may use it. */
  readonly stager: CheckpointStager;
}

/** A checkpoint that is being saved: `await` it. Given by {@link asyncSave}. */
export class AsyncSave implements PromiseLike<SavedCheckpoint>, Disposable {
  /** The path that the finished checkpoint will have. */
  readonly path: string;
  readonly #plan: SavePlan;
  readonly #group: ProcessGroup;
  readonly #stager: CheckpointStager;
  readonly #progress: SaveProgress;
  /** Functions that end the watch over a save that nobody has awaited yet. */
  readonly #watches: readonly (() => void)[];
  /** Called at each turn of the event loop in which the Worker has come further, or has ended. */
  #onProgress: () => void = () => {};
  #result: Promise<SavedCheckpoint> | undefined;
  #isOver = false;
  /** On rank 0: keeps other trainings out of the directory until its Worker has ended. */
  readonly #lock: FolderLock | undefined;
  readonly #closed: PromiseWithResolvers<void> = Promise.withResolvers();

  /** Use {@link asyncSave}. */
  constructor(
    plan: SavePlan,
    { directory, group, stager }: AsyncSaveOptions,
    work: Omit<SaveJob, "progress">,
    lock?: FolderLock,
  ) {
    this.path = plan.path;
    this.#plan = plan;
    this.#group = group;
    this.#stager = stager;
    this.#lock = lock;
    this.#progress = new SaveProgress();
    addPending({ directory, label: plan.label, progress: this.#progress, closed: this.#closed.promise });
    this.#start({ ...work, progress: this.#progress.buffer });
    this.#watches = [group.observe(() => this.#stopIfFailed()), onProgramEnd(() => this.#stopIfFailed())];
  }

  /**
   * True if this rank's Worker has ended, with or without success; on rank 0, if the checkpoint is there or has failed. Never
   * waits.
   */
  get done(): boolean {
    return this.#isOver || this.#progress.hasEnded;
  }

  /**
   * Waits until the checkpoint is there. Every rank must await it, between steps.
   *
   * @throws {FileError} as `saveCheckpoint`: then ranks may go on, and earlier checkpoints are as they were
   */
  then<A = SavedCheckpoint, B = never>(
    onFulfilled?: ((saved: SavedCheckpoint) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return (this.#result ??= this.#finish()).then(onFulfilled, onRejected);
  }

  /** Gives up a save that was not awaited; what is written of it goes. Never waits. */
  [Symbol.dispose](): void {
    if (this.#result === undefined) this.#end();
  }

  #start(job: SaveJob): Worker {
    const worker = new Worker(new URL("./save_worker.ts", import.meta.url), { type: "module" });
    const broke = (how: string): void => {
      if (!this.done) this.#progress.fail({ kind: "bug", said: how });
      this.#unlockIfEnded();
      this.#onProgress();
    };
    worker.addEventListener("message", () => {
      this.#onProgress();
      if (this.#progress.hasEnded) worker.terminate();
      this.#unlockIfEnded();
    });
    worker.addEventListener("error", (event: ErrorEvent) => {
      event.preventDefault(); // Deno ends the process for what nobody handles
      broke(event.message);
      worker.terminate();
    });
    worker.addEventListener("close", () => broke("it ended early"));
    worker.postMessage(job);
    return worker;
  }

  async #finish(): Promise<SavedCheckpoint> {
    const { label, path, partial } = this.#plan;
    if (this.#isOver) throw this.#progress.error ?? new ArgumentError(`Cannot ${label}: it was given up`);
    this.#unwatch();
    try {
      // All ranks learn of a failed one before any waits for the last word of rank 0.
      await this.#group.together(label, () => this.#reached("written"));
      await this.#group.together(label, () => this.#reached("done"));
      const byteLength = at(this.#group.sum([this.#progress.writtenBytes], label), 0, "sum");
      return { path, byteLength };
    } catch (error) {
      // A second attempt must not meet a Worker that still writes, or cleans up.
      this.#progress.giveUp();
      await this.#until("done");
      if (this.#group.rank === 0) removeQuietly(partial);
      throw error;
    } finally {
      this.#end();
    }
  }

  /** Returns once the Worker has come so far. @throws what it failed with */
  async #reached(stage: Stage): Promise<void> {
    await this.#until(stage);
    const { error } = this.#progress;
    if (error !== undefined) throw error;
  }

  /** Returns once the Worker has come so far, or has failed. */
  async #until(stage: Stage): Promise<void> {
    while (!this.#progress.has(stage)) await new Promise<void>((resolve) => this.#onProgress = resolve);
  }

  /** See Note [Failures of a save]. */
  #stopIfFailed(): void {
    const { error } = this.#progress;
    if (error === undefined) return;
    this.#end();
    this.#group.abort(`${error.name}: ${error.message}`);
    if (this.#group.rank === 0) removeQuietly(this.#plan.partial);
    throw error;
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#unwatch();
    this.#progress.giveUp();
    this.#stager.takeBack(!this.#progress.hasEnded);
    this.#unlockIfEnded();
  }

  /** Gives the directory up once nothing is written there any more: of a save that failed, when its files are removed. */
  #unlockIfEnded(): void {
    const { error, hasEnded } = this.#progress;
    if (hasEnded && (error === undefined || this.#isOver)) this.#lock?.[Symbol.dispose]();
    if (hasEnded && this.#isOver) this.#closed.resolve();
  }

  #unwatch(): void {
    for (const end of this.#watches) end();
  }
}

/**
 * Saves `checkpoint-<step>` while training goes on, as PyTorch's `async_save` does: copies what this rank writes, starts a Worker
 * that writes the copy, and returns. The checkpoint appears when the Workers of all ranks have written, whether it is awaited
 * or not. Every rank must call it, between steps.
 *
 * A rank whose Worker fails throws what it failed with from its next collective, and stops all ranks, unless the save is awaited
 * before: then all throw there and may go on.
 *
 * @returns at once; await it before the next save, and before the program ends
 * @throws {ArgumentError} if step or keepLast make no sense, the state holds what JSON does not keep, or the stager is in use by a save that was not awaited
 * @throws {OutOfMemoryError} {@link FileError} if this rank has no memory for the copy, or rank 0 cannot make the directory;
 *   {@link CollectiveError} on the others
 * @example
 * ```ts
 * import { AdamW, launch, openModel } from "fullyshard";
 * import { asyncSave, CheckpointStager } from "fullyshard/checkpoint";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes }, { fsdpPlan: "auto" });
 * const optimizer = new AdamW(model.parameters());
 * using stager = new CheckpointStager(run.device);
 * const directory = `/tmp/fullyshard-${crypto.randomUUID()}`;
 * const saving = asyncSave({ directory, step: 1, model, optimizer, group: run.group, state: {}, stager });
 * // steps go on here
 * const { path } = await saving;
 * if (path !== `${directory}/checkpoint-1`) throw new Error("elsewhere");
 * ```
 */
export function asyncSave(options: AsyncSaveOptions): AsyncSave {
  requireKnownKeys("save a checkpoint", options, { ...SAVE_OPTIONS, stager: true });
  const { step, stager } = options;
  stager.lend(`save checkpoint ${step}`);
  try {
    return begin(planSave(options), options);
  } catch (error) {
    stager.takeBack(false);
    throw error;
  }
}

function begin(plan: SavePlan, options: AsyncSaveOptions): AsyncSave {
  const { directory, step, model, optimizer, group: { rank, size }, group, stager } = options;
  let lock: FolderLock | undefined;
  try {
    const work = group.agree(plan.label, () => {
      if (rank === 0) {
        lock = lockFolderNow(directory);
        beginCheckpoint(directory, step);
      }
      stager.reserve(model, optimizer);
      const completion = rank === 0 ? plan.completion() : undefined;
      return { ...stager.stage(plan.sections, rank), rank, size, partial: plan.partial, completion };
    });
    return new AsyncSave(plan, options, work, lock);
  } catch (error) {
    if (lock !== undefined) removeQuietly(plan.partial);
    lock?.[Symbol.dispose]();
    throw error;
  }
}
