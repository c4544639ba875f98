/**
 * Distributed data parallelism (PyTorch's `DistributedDataParallel`): every rank holds the whole model, and gradients are
 * averaged over ranks at the end of each backward, in buckets that gradients are written to directly.
 *
 * @module
 */
import { activePass, type BackwardPass } from "../autograd/engine.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { collectTensors, ensureNames, type Module } from "../nn/module.ts";
import { hookBackward } from "../tensor/apply.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { writeParameters } from "../tensor/write.ts";
import { GradientBucket, planBuckets } from "./bucket.ts";

/** Options of {@link replicate}. */
export interface ReplicateOptions {
  /** The ranks that hold copies. */
  readonly group: ProcessGroup;
  /** Gradients reduced together, in bytes: PyTorch's 25 MiB unless said otherwise. */
  readonly bucketBytes?: number;
}

/** A replicated module. */
export class ReplicatedModule {
  readonly module: Module;
  /** Whether the next backward reduces gradients (PyTorch's `no_sync` when false). */
  requiresGradientSync = true;
  #gradientDivideFactor: number;
  readonly #group: ProcessGroup;
  readonly #buckets: readonly GradientBucket[];
  readonly #unhook: () => void;
  /** The last backward pass whose end was queued for. */
  #pass: BackwardPass | undefined;

  constructor(module: Module, group: ProcessGroup, buckets: readonly GradientBucket[]) {
    this.module = module;
    this.#gradientDivideFactor = group.size;
    this.#group = group;
    this.#buckets = buckets;
    this.#unhook = module.registerForwardHook((_args, output) => {
      hookBackward("ddp", collectTensors(output), () => this.#queue());
    });
  }

  /** What summed gradients are divided by: the number of ranks unless set, or the number of tokens for a token-sum loss. */
  setGradientDivideFactor(factor: number): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    this.#gradientDivideFactor = factor;
  }

  /** Whether the next backward reduces gradients. */
  setRequiresGradientSync(sync: boolean): void {
    this.requiresGradientSync = sync;
  }

  /** Makes the module an ordinary one again, without gradients. */
  dispose(): void {
    this.#unhook();
    for (const bucket of this.#buckets) bucket.dispose();
  }

  #queue(): void {
    const pass = activePass();
    if (pass === undefined) throw new InternalError("a backward hook ran outside a backward pass");
    if (this.#pass === pass || !this.requiresGradientSync) return;
    this.#pass = pass;
    pass.atEnd(() => {
      this.#pass = undefined;
      const scale = 1 / this.#gradientDivideFactor;
      for (const [i, bucket] of this.#buckets.entries()) bucket.reduce(this.#group, scale, `gradient bucket ${i}`);
    });
  }
}

/**
 * Replicates a module over the ranks of a group. Its parameters take rank 0's values, if they have any yet. After a backward
 * every trainable parameter has a gradient: zeros if no rank used it.
 *
 * @throws {ArgumentError} if it has no trainable parameters, or some are sharded, or replicated already
 */
export function replicate(module: Module, options: ReplicateOptions): ReplicatedModule {
  const { group, bucketBytes } = options;
  ensureNames(module);
  const parameters = [...module.parameters()];
  const trainable = parameters.filter((parameter) => parameter.trainable);
  if (trainable.length === 0) {
    throw new ArgumentError(`Cannot replicate ${module.constructor.name}: nothing is trainable`);
  }
  for (const parameter of parameters) parameter.requirePlain("replicate");
  const buckets = planBuckets(trainable.toReversed(), bucketBytes).map((members) => new GradientBucket(members));
  const present = parameters.filter((parameter: Parameter) => parameter.buffer.attached);
  writeParameters(present, (parameter, owned) => {
    group.broadcast(owned, parameter.numel * float32.byteLength, 0, `'${parameter.fqn}'`).wait();
  });
  return new ReplicatedModule(module, group, buckets);
}
