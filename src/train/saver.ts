/**
 * The checkpoints of a run: either all ranks stop to write them, or Workers write a copy while the ranks go on. A checkpoint is
 * reported when it is complete.
 *
 * @module
 */
import { saveHfDirectory } from "../checkpoint/hugging_face/save.ts";
import { type AsyncSave, asyncSave } from "../checkpoint/sharded/async_save.ts";
import { saveCheckpoint } from "../checkpoint/sharded/save.ts";
import type { SaveCheckpointOptions } from "../checkpoint/sharded/save_plan.ts";
import { CheckpointStager } from "../checkpoint/sharded/stager.ts";
import type { Logger } from "../runtime/log.ts";
import type { OutputConfig } from "./config.ts";
import type { StepContext } from "./step.ts";

/** Saves a run's checkpoints. */
export class CheckpointSaver implements Disposable {
  readonly #context: StepContext;
  readonly #config: OutputConfig;
  readonly #log: Logger;
  readonly #stager: CheckpointStager | undefined;
  #saving: AsyncSave | undefined;

  /** @throws {OutOfMemoryError} if saves are asynchronous and there is no memory for a copy */
  constructor(context: StepContext, config: OutputConfig, log: Logger) {
    const { device, model, optimizer } = context;
    this.#context = context;
    this.#config = config;
    this.#log = log;
    if (!config.asyncSave) return;
    this.#stager = new CheckpointStager(device);
    this.#stager.reserve(model, optimizer);
  }

  /** True if this rank's Worker has nothing left to do. Never waits. */
  get isIdle(): boolean {
    return this.#saving?.done !== false;
  }

  /** Saves, or begins to save once the last save has ended. Every rank must call it. */
  async save(options: Pick<SaveCheckpointOptions, "step" | "state" | "environment">): Promise<void> {
    const { model, optimizer, group } = this.#context;
    const { out: directory, keepLast, stateDictType } = this.#config;
    const what = { ...options, directory, model, optimizer, group, keepLast };
    if (this.#stager !== undefined) {
      await this.finishPending();
      this.#saving = asyncSave({ ...what, stager: this.#stager });
      return;
    }
    const { path } = await saveCheckpoint(what);
    if (stateDictType === "full") await saveHfDirectory(model, `${path}/model`, group);
    this.#tell(path);
  }

  /** Waits until a save that was begun is complete. Every rank must call it. */
  async finishPending(): Promise<void> {
    if (this.#saving === undefined) return;
    const { path } = await this.#saving;
    this.#saving = undefined;
    this.#tell(path);
  }

  /** Aborts a save that is under way. */
  [Symbol.dispose](): void {
    this.#saving?.[Symbol.dispose]();
    this.#stager?.[Symbol.dispose]();
  }

  #tell(path: string): void {
    this.#log.once().info(`Saved '${path}'`);
  }
}
