/**
 * The checkpoints of a run: either all ranks stop to write them, or Workers write a copy while the ranks go on. A checkpoint is
 * reported when it is complete.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { type AsyncSave, asyncSave } from "../checkpoint/sharded/async_save.ts";
import { saveCheckpoint } from "../checkpoint/sharded/save.ts";
import type { SaveCheckpointOptions } from "../checkpoint/sharded/save_plan.ts";
import { CheckpointStager } from "../checkpoint/sharded/stager.ts";
import type { Logger } from "../runtime/log.ts";
import { averaged } from "./averaged.ts";
import type { OutputConfig } from "./output_config.ts";
import { saveModel } from "./save_model.ts";
import type { StepContext } from "./step.ts";

/** Saves a run's checkpoints. */
export class CheckpointSaver implements Disposable {
  readonly #context: StepContext;
  readonly #config: OutputConfig;
  readonly #log: Logger;
  readonly #stager: CheckpointStager | undefined;
  readonly #onSaved: (path: string, step: number) => Promise<void>;
  #saving: { readonly save: AsyncSave; readonly step: number } | undefined;

  /**
   * @param onSaved called on every rank when a checkpoint is complete
   * @throws {OutOfMemoryError} if saves are asynchronous and there is no memory for a copy
   */
  constructor(
    context: StepContext,
    config: OutputConfig,
    log: Logger,
    onSaved: (path: string, step: number) => Promise<void>,
  ) {
    const { device, model, optimizer } = context;
    this.#onSaved = onSaved;
    this.#context = context;
    this.#config = config;
    this.#log = log;
    if (!config.asyncSave) return;
    this.#stager = new CheckpointStager(device);
    this.#stager.reserve(trainedPart(model), optimizer);
  }

  /** True if this rank's Worker has nothing left to do. Never waits. */
  get isIdle(): boolean {
    return this.#saving?.save.done !== false;
  }

  /** Saves, or begins to save once the last save has ended. Every rank must call it. */
  async save(options: Pick<SaveCheckpointOptions, "step" | "state" | "environment" | "keep">): Promise<void> {
    const { model, optimizer, group } = this.#context;
    const { out: directory, keepLast, stateDictType } = this.#config;
    const what = { ...options, directory, model: trainedPart(model), optimizer, group, keepLast };
    if (this.#stager !== undefined) {
      await this.finishPending();
      this.#saving = { save: asyncSave({ ...what, stager: this.#stager }), step: options.step };
      return;
    }
    const { path } = await saveCheckpoint(what);
    if (stateDictType === "full") await averaged({ optimizer }, () => saveModel(model, `${path}/model`, group));
    await this.#tell(path, options.step);
  }

  /** Waits until a save that was begun is complete. Every rank must call it. */
  async finishPending(): Promise<void> {
    if (this.#saving === undefined) return;
    const { save, step } = this.#saving;
    const { path } = await save;
    this.#saving = undefined;
    await this.#tell(path, step);
  }

  /** Aborts a save that is under way. */
  [Symbol.dispose](): void {
    this.#saving?.save[Symbol.dispose]();
    this.#stager?.[Symbol.dispose]();
  }

  async #tell(path: string, step: number): Promise<void> {
    this.#log.once().info(`Saved '${path}'`);
    await this.#onSaved(path, step);
  }
}
