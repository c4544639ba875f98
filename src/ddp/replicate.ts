/**
 * Distributed data parallelism (PyTorch's `DistributedDataParallel`): every rank holds the full model, and gradients are
 * averaged over ranks at the end of each backward, in buckets that gradients are written to directly.
 *
 * @module
 */
import { activePass, type BackwardPass, type PassMember } from "../autograd/engine.ts";
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { bytesOf } from "../quantized.ts";
import { isWithin } from "../held.ts";
import { valueText } from "../words.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { type HookHandle, type Module, requireModule } from "../nn/module.ts";
import { type MixedPrecision, type ResolvedPrecision, resolvePrecision } from "../parallel/precision.ts";
import { ranksOf, requireApart } from "../parallel/ranks.ts";
import { usedOnAnyRank } from "../parallel/used.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { GradientReducer } from "../tensor/parameter_storage.ts";
import { writeParameters } from "../tensor/write.ts";
import { GradientBucket, planBuckets } from "./bucket.ts";
import { ReplicatedStorage } from "./param.ts";
import { requireKnownKeys } from "../config/known_keys.ts";

/** Options of {@link replicate}. */
export interface ReplicateOptions {
  /** The ranks that hold copies: a mesh of one axis, or a group. */
  readonly mesh: DeviceMesh | ProcessGroup;
  /** Gradients reduced together, in bytes. @default 25 MiB, as in PyTorch */
  readonly bucketBytes?: number;
  /** The dtypes of computation and reduction. Values stay float32; the copies that are computed with cost their own bytes. */
  readonly precision?: MixedPrecision | undefined;
}

/** A replicated module. */
export class ReplicatedModule implements PassMember, GradientReducer {
  /** The module that was replicated. */
  readonly module: Module;
  requiresGradientSync = true;
  #gradientDivideFactor: number;
  /** The inverse of the divide factor, which sums are multiplied by. */
  readonly #scale: DeviceScalar;
  readonly #group: ProcessGroup;
  readonly #bucketBytes: number | undefined;
  readonly #storages: ReadonlyMap<Parameter, ReplicatedStorage>;
  #buckets: ReadonlyMap<ReplicatedStorage, GradientBucket> = new Map();
  readonly #precision: ResolvedPrecision;
  readonly #uncast: HookHandle;
  #disposed = false;
  /** The pass that it has joined. */
  #pass: BackwardPass | undefined;

  /**
   * Made by {@link replicate}. Parameters take rank 0's values and become replicated once nothing can fail on one rank alone any more:
   * where memory runs out, they are what they were on all ranks.
   */
  constructor(module: Module, group: ProcessGroup, { bucketBytes, precision }: Omit<ReplicateOptions, "mesh">) {
    this.module = module;
    this.#group = group;
    this.#bucketBytes = bucketBytes;
    this.#precision = resolvePrecision(precision);
    this.#gradientDivideFactor = group.size;
    const bucketOf = (storage: ReplicatedStorage): GradientBucket => this.#bucketOf(storage);
    const parameters = keptParameters(module);
    const [first] = parameters;
    if (first === undefined) throw new InternalError("a replicated module without parameters");
    this.#storages = new Map(
      parameters.map((parameter) =>
        [parameter, new ReplicatedStorage(parameter, this, bucketOf, this.#precision.paramDtype)] as const
      ),
    );
    using opened = new DisposableStack();
    this.#scale = group.agree(`replicate ${module.constructor.name}`, () => {
      for (const storage of this.#storages.values()) {
        opened.defer(() => storage.discard());
        storage.open();
      }
      return opened.use(first.device.scalars.make(1 / group.size));
    });
    const present = parameters.filter(({ buffer }) => buffer.hasMemory);
    writeParameters(present, (parameter, owned) => {
      group.broadcast(owned, bytesOf(parameter.storage.flatShard.dtype, parameter.numel), 0, `'${parameter.fqn}'`)
        .wait();
    });
    opened.move();
    for (const storage of this.#storages.values()) storage.adopt();
    this.#uncast = module.castBoundary(this.#precision.boundary);
  }

  /** The ranks that hold copies. */
  get worldRanks(): readonly number[] {
    return this.#group.worldRanks;
  }

  get gradientDivideFactor(): number {
    return this.#gradientDivideFactor;
  }

  set gradientDivideFactor(factor: number) {
    this.#gradientDivideFactor = factor;
    this.#scale.value = 1 / factor;
  }

  /**
   * Sets the divisor of summed gradients, e.g. the number of tokens for a token-sum loss.
   *
   * @default the number of ranks
   */
  setGradientDivideFactor(factor: number): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    this.gradientDivideFactor = factor;
  }

  /** Sets if the next backward reduces gradients. */
  setRequiresGradientSync(sync: boolean): void {
    this.requiresGradientSync = sync;
  }

  /** Makes the module an ordinary one again, without gradients. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#uncast();
    for (const parameter of this.#storages.keys()) parameter.release();
    this.#scale[Symbol.dispose]();
  }

  /** Reduces the gradients of the pass. A parameter that no rank used has none afterwards. */
  endPass(): void {
    this.#pass = undefined;
    if (!this.requiresGradientSync) return;
    const buckets = [...new Set(this.#buckets.values())];
    for (const [i, bucket] of buckets.entries()) {
      bucket.reduce(this.#group, this.#precision.reduceDtype, this.#scale, `gradient bucket ${i}`);
    }
    const members = [...this.#buckets.keys()];
    const used = usedOnAnyRank(this.#group, members);
    for (const member of members) member.endPass(used.has(member));
  }

  abandonPass(): void {
    this.#pass = undefined;
    for (const storage of this.#storages.values()) storage.clearGradient();
  }

  #bucketOf(storage: ReplicatedStorage): GradientBucket {
    const pass = activePass();
    if (pass === undefined) {
      throw new InternalError(`'${storage.parameter.fqn}' got a gradient outside a backward pass`);
    }
    if (pass !== this.#pass) {
      this.#pass = pass;
      pass.join(this);
      this.#planBuckets();
    }
    const bucket = this.#buckets.get(storage);
    if (bucket === undefined) throw new InternalError(`'${storage.parameter.fqn}' has no gradient bucket`);
    return bucket;
  }

  /** Makes buckets of what is trained now: parameters may have been frozen or unfrozen since the last pass. */
  #planBuckets(): void {
    const trained = [...this.#storages.keys()].filter(({ requiresGrad }) => requiresGrad).toReversed();
    const planned = [...this.#buckets.keys()];
    if (trained.length === planned.length && planned.every(({ parameter }, i) => parameter === trained[i])) return;
    const buckets = planBuckets(trained, this.#bucketBytes).map((parameters) =>
      new GradientBucket(parameters.flatMap((parameter) => this.#storages.get(parameter) ?? []))
    );
    this.#buckets = new Map(buckets.flatMap((bucket) => bucket.storages.map((storage) => [storage, bucket] as const)));
  }
}

/** The parameters of a module that this rank keeps: all, without the parameters of a pipeline's other stages. */
function keptParameters(module: Module): readonly Parameter[] {
  return [...module.parameters()].filter(({ storage }) => storage.kind !== "absent");
}

/**
 * Replicates a module over the ranks of a group. Its parameters take rank 0's values, if they have any yet. After a backward, every
 * parameter that requires a gradient and that any rank used has one.
 *
 * @throws {ArgumentError} for dtypes that nothing computes in, if no parameter requires a gradient, or some are sharded, or replicated
 * already
 * @throws {UnsupportedError} for a mesh of several axes, and for the bare group of one axis of it
 */
export function replicate(module: Module, options: ReplicateOptions): ReplicatedModule {
  requireKnownKeys("replicate", options, { mesh: true, bucketBytes: true, precision: true });
  const group = ranksOf(options.mesh, "replicate");
  requireModule("replicate", module);
  const { bucketBytes } = options;
  if (bucketBytes !== undefined && !(isWithin(bucketBytes, 0) && bucketBytes > 0)) {
    throw new ArgumentError(`Cannot replicate with bucketBytes ${valueText(bucketBytes)}: expected a positive number`);
  }
  module.ensureNames();
  const parameters = keptParameters(module);
  if (!parameters.some(({ requiresGrad }) => requiresGrad)) {
    throw new ArgumentError(`Cannot replicate ${module.constructor.name}: no parameter requires a gradient`);
  }
  for (const parameter of parameters) parameter.requirePlain("replicate");
  requireApart(parameters, group, "replicate");
  return new ReplicatedModule(module, group, options);
}
