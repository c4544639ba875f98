/**
 * One flat segment at work: its parameters, which are views of the unsharded buffer, their unsharded gradient, and this rank's shard
 * of the reduced gradient.
 *
 * Note [What a segment holds of its gradients]
 * - unsharded gradient: `world` shards in the reduce dtype, from the first contribution of a backward to its reduction.
 * - sharded gradient: float32, from the first reduction until it is cleared; it lies on the shard's device.
 * - partial gradient: float32, where there are replicas: this replica's own sum, until it is summed over them and scaled.
 *
 * The unsharded gradient is written on the compute stream, then reduced and freed on the reduce stream. Readers of the sharded
 * gradient wait for the reduction.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Phase } from "../comm/call.ts";
import { enqueuedWork, type Work } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr, NO_PTR } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import type { StatePool } from "../device/state_pool.ts";
import { float32 } from "../dtype.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { InternalError } from "../errors.ts";
import { denseLayout, numelOf } from "../shape.ts";
import type { FlatShard, Parameter } from "../tensor/parameter.ts";
import { Tensor } from "../tensor/tensor.ts";
import { elementSlices } from "../tensor/shard_layout.ts";
import { copyChunks, GatheredParameters } from "./gathered.ts";
import { ownedPart, planParts, type SegmentPlan } from "./layout.ts";
import { ShardedStorage } from "./param.ts";
import type { GatherExtension } from "./policy.ts";
import type { FsdpUnit } from "./unit.ts";

/** What may be special about a segment. */
export interface SegmentOptions {
  /** What the unit's name is followed by in the segment's. */
  readonly suffix?: string;
  /** Plan of a segment whose only parameter is cut along a dim. @default flat, one parameter after another */
  readonly plan?: SegmentPlan;
  readonly extension?: GatherExtension | undefined;
}

/** A flat segment of one unit. */
export class FlatSegment implements FlatShard {
  /** What is computed on: gradients are reduced there. */
  readonly computeDevice: Device;
  /** The unit it belongs to. */
  readonly unit: FsdpUnit;
  readonly plan: SegmentPlan;
  readonly storages: readonly ShardedStorage[];
  readonly #nameOf: () => string;
  readonly #parameters: GatheredParameters;
  #unshardedGrad: Buffer | undefined;
  #shardedGrad: Buffer | undefined;
  #partialGrad: Buffer | undefined;
  /** The reduction that has not been waited for. */
  #reduction: Work | undefined;

  /**
   * Opens the window. Collective: where it fails on a rank, it fails on all. What follows are {@link open}, {@link take} and
   * {@link adopt}: nothing changes in the parameters before the last.
   *
   * @param unit what it is part of
   */
  constructor(unit: FsdpUnit, parameters: readonly Parameter[], { suffix = "", plan, extension }: SegmentOptions) {
    const first = parameters[0];
    if (first === undefined) throw new InternalError("a segment without parameters");
    const { group, paramDtype, reduceDtype } = unit.policy;
    this.unit = unit;
    this.computeDevice = first.device;
    const narrowest = Math.min(float32.byteLength, paramDtype.byteLength, reduceDtype.byteLength);
    this.plan = plan ?? planParts(parameters, group.size, narrowest);
    this.#nameOf = () => `${unit.name}${plan === undefined ? suffix : ` (${first.fqn})`}`;
    this.#parameters = new GatheredParameters(first.device, this.plan, unit.policy, this.#nameOf, extension);
    this.storages = parameters.map((parameter, i) => {
      const offset = at(this.plan.offsets, i, "offset of parameter");
      const part = ownedPart(this.plan, offset, parameter.shape, group.rank);
      return new ShardedStorage(this, parameter, offset, part, group);
    });
  }

  /** Allocates what is this rank's own. It may fail on this rank alone. */
  open(): void {
    this.#parameters.open();
  }

  /** Makes the parameters views of the unsharded buffer, and frees memory of their own. */
  adopt(): void {
    const { unsharded: buffer } = this.#parameters;
    const dtype = this.unit.policy.paramDtype;
    for (const [i, storage] of this.storages.entries()) {
      const layout = denseLayout(storage.parameter.shape, at(this.plan.offsets, i, "offset of parameter"));
      buffer.retain();
      storage.parameter.adopt(storage, { buffer, layout, dtype });
    }
  }

  /** Copies this rank's elements of a parameter whose unsharded float32 values lie at `from`. Between {@link beginWrite} and its end. */
  take(parameter: Parameter, from: DevicePtr): void {
    const storage = this.storages.find((one) => one.parameter === parameter);
    if (storage === undefined) throw new InternalError(`'${parameter.fqn}' is not in '${this.name}'`);
    const width = float32.byteLength;
    for (const { offset, length, local } of elementSlices(storage.localShard)) {
      const dst = devicePtr(this.param + (storage.runOffset + local) * width);
      const src = devicePtr(from + offset * width);
      if (this.device === this.computeDevice) this.device.copy(dst, src, length * width);
      else copyAcross({ device: this.device, ptr: dst }, { device: this.computeDevice, ptr: src }, length * width);
    }
    storage.materialize();
  }

  /** The unit's name, as it is now, and what tells the segment from others of the unit. */
  get name(): string {
    return this.#nameOf();
  }

  get device(): Device {
    return this.#parameters.home;
  }

  get statePool(): StatePool | undefined {
    return this.unit.policy.offloadPolicy?.optimizerStates;
  }

  get length(): number {
    return this.plan.shardLength;
  }

  get param(): DevicePtr {
    return this.#parameters.master;
  }

  get grad(): DevicePtr {
    return this.#shardedGrad?.ptr ?? NO_PTR;
  }

  beginWrite(): void {
    this.unit.reshard(); // a gathered copy would grow stale
    this.#parameters.beginWrite();
  }

  endWrite(): void {
    this.#parameters.endWrite();
  }

  /** Begins to gather the parameters; see {@link waitForGather}. */
  unshard(phase: Phase): void {
    for (const { parameter } of this.storages) parameter.requireValues();
    this.#parameters.unshard(phase, this.unit.custom.allGather);
  }

  /** Orders what is enqueued from now on after the gather under way. */
  waitForGather(): void {
    this.#parameters.wait();
  }

  /** Frees the unsharded parameters. Where `ranks` are given, each of them keeps a part. */
  reshard(ranks?: ProcessGroup): void {
    if (ranks === undefined) this.#parameters.reshard();
    else this.#parameters.reshardTo(ranks);
  }

  /** Whether ops may write gradients to their places: those are no narrower than what is computed in. */
  get writesDirectly(): boolean {
    return this.unit.policy.reduceDtype.byteLength >= this.unit.policy.paramDtype.byteLength;
  }

  /** Whether gradients wait to be reduced. */
  get holdsUnshardedGradient(): boolean {
    return this.#unshardedGrad !== undefined;
  }

  /** A handle on the place of one parameter's gradient in the unsharded gradient. */
  gradientPlace(parameter: Parameter, offset: number): Tensor {
    const bytes = this.plan.world * this.length * this.unit.policy.reduceDtype.byteLength;
    this.#unshardedGrad ??= Buffer.allocate(this.computeDevice, bytes, `${this.name} gradients`, "gradients");
    this.#unshardedGrad.retain();
    return new Tensor(this.#unshardedGrad, denseLayout(parameter.shape, offset), this.unit.policy.reduceDtype);
  }

  /**
   * Sums the unsharded gradient over the ranks that share the unit. Parameters without a gradient count as zero. The sums go
   * - to the sharded gradient, times `scale`, if neither replicas nor a hook follow;
   * - to the partial gradient, times `scale`, if only a hook follows;
   * - to the partial gradient, unscaled, if replicas follow: their all-reduce scales.
   */
  reduceScatter(scale: DeviceScalar): void {
    if (!this.storages.some(({ parameter }) => parameter.requiresGrad)) return;
    for (const storage of this.storages) storage.prepareReduction();
    if (this.#unshardedGrad === undefined) throw new InternalError(`'${this.name}' has no gradients to reduce`);
    const { ptr: src } = this.#unshardedGrad;
    const { policy: { group, replicas, reduceDtype: dtype }, custom } = this.unit;
    const isFinal = replicas === undefined && custom.allReduceHook === undefined;
    const isOffloaded = isFinal && this.device !== this.computeDevice;
    this.#onReduceStream(scale, () => {
      using kept = new DisposableStack();
      const before = isOffloaded ? undefined : isFinal ? this.#shardedGrad : this.#partialGrad;
      const sum = before ?? this.#allocateShardedGrad(this.computeDevice);
      if (!isFinal) this.#partialGrad = sum;
      else if (!isOffloaded) this.#shardedGrad = sum;
      else kept.use(sum);
      const slices = this.#shardStarts(this.length).map((offset) => ({ offset, length: this.length }));
      const scaled = replicas === undefined ? { scale } : {};
      const to = { dst: sum.ptr, dstDtype: float32, accumulate: before !== undefined, ...scaled };
      using chunked = this.#inShards(src);
      const args = { src: chunked?.ptr ?? src, dtype, slices, ...to };
      const work = custom.reduceScatter === undefined
        ? group.reduceScatter(args, this.name, "backward")
        : custom.reduceScatter({ ...args, group, unit: this.name, phase: "backward" });
      if (isOffloaded) {
        work.wait();
        this.#addToShardedGrad(sum);
      }
      for (const { sink } of this.storages) sink.clear();
      if (this.#unshardedGrad !== undefined) this.unit.holdInput(this.#unshardedGrad);
      this.#unshardedGrad = undefined;
      return work;
    });
  }

  /** Sums the partial gradient, if there is one, over replicas, times `scale`, hands it to a hook, and adds it to the sharded gradient. */
  allReduce(scale: DeviceScalar): void {
    const { policy: { replicas }, custom: { allReduceHook } } = this.unit;
    const partial = this.#partialGrad;
    if (partial === undefined) return;
    this.#onReduceStream(scale, () => {
      this.#partialGrad = undefined;
      using _partial = partial;
      replicas?.allReduce(partial.ptr, this.length, float32, { scale, unit: this.name, phase: "backward" }).wait();
      if (allReduceHook !== undefined) {
        partial.retain();
        using reduced = new Tensor(partial, denseLayout([this.length]), float32);
        allReduceHook(reduced);
      }
      this.#addToShardedGrad(partial);
      return enqueuedWork(this.computeDevice);
    });
  }

  /** Whether gradients were reduced, over replicas as well, and are not yet shown to their parameters. */
  get isReduced(): boolean {
    return this.#partialGrad === undefined && this.storages.some(({ isHidden }) => isHidden);
  }

  /** Shows what was reduced, of the members that some rank used. See Note [Unused parameters]. */
  show(used: ReadonlySet<ShardedStorage>): void {
    this.#waitForReduction();
    for (const storage of this.storages) storage.show(used.has(storage));
  }

  /** The pass failed: no gradient is left, neither of it nor of earlier ones, which it may have been added to. */
  abandonPass(): void {
    this.#waitForReduction();
    for (const storage of this.storages) storage.clearGradient();
  }

  /** The sharded gradient of one parameter, or undefined before the first reduction. */
  shardedGradient(runOffset: number, length: number): Tensor | undefined {
    if (this.#shardedGrad === undefined) return undefined;
    this.#shardedGrad.retain();
    return new Tensor(this.#shardedGrad, denseLayout([length], runOffset), float32);
  }

  /** Called when a storage has cleared its gradient: memory goes back with the last one; until then the next sum starts at zero. */
  releaseGradient({ runOffset, shard: { numel } }: ShardedStorage): void {
    this.#waitForReduction();
    const sums = [this.#shardedGrad, this.#partialGrad].filter((sum) => sum !== undefined);
    if (this.storages.some((storage) => storage.holdsGradient)) {
      for (const { ptr, device } of sums) {
        const dst = devicePtr(ptr + runOffset * float32.byteLength);
        device.kernels.fill({ dtype: float32, n: numel, value: 0, dst });
      }
      return;
    }
    for (const sum of sums) sum.release();
    this.#shardedGrad = undefined;
    this.#partialGrad = undefined;
    this.#freeUnshardedGrad();
  }

  /** Frees everything. Parameters that it has adopted become plain ones without memory. Every rank must. */
  dispose(): void {
    this.#waitForReduction();
    for (const storage of this.storages) if (storage.parameter.storage === storage) storage.parameter.release();
    this.#parameters.dispose();
  }

  /**
   * Gathers the master weights, and lends the unsharded float32 values of each parameter that has some, on the compute device. Collective.
   *
   * @param ready what else must be allocated first: where that fails on a rank, it fails on all
   */
  lendValues(use: (parameter: Parameter, values: DevicePtr) => void, ready: () => void = () => {}): void {
    const { computeDevice: device, name, length, plan: { chunks, offsets, world }, unit: { policy: { group } } } = this;
    const bytes = length * float32.byteLength;
    const lent = this.storages.filter((storage) => storage.hasValues());
    if (lent.length === 0) return;
    using taken = new DisposableStack();
    const allocate = (byteLength: number): Buffer =>
      taken.use(Buffer.allocate(device, byteLength, `${name} master weights`, "gathered"));
    const { values, own, dense } = group.agree(`gather the values of '${name}'`, () => {
      ready();
      const values = allocate(world * bytes);
      const own = this.device === device ? undefined : allocate(bytes);
      // A parameter cut along a dim is alone in its segment, in chunks.
      const dense = chunks === undefined ? undefined : allocate(numelOf(chunks.shape) * float32.byteLength);
      return { values, own, dense };
    });
    if (own !== undefined) copyAcross(own, { device: this.device, ptr: this.param }, bytes);
    group.allGather(values.ptr, own?.ptr ?? this.param, bytes, name).wait();
    if (chunks !== undefined && dense !== undefined) {
      copyChunks(device, float32, chunks, { unsharded: dense.ptr, shards: values.ptr, world, to: "unsharded" });
    }
    for (const [i, storage] of this.storages.entries()) {
      if (!storage.hasValues()) continue;
      const offset = at(offsets, i, "offset of parameter") * float32.byteLength;
      use(storage.parameter, dense?.ptr ?? devicePtr(values.ptr + offset));
    }
  }

  /** Enqueues a reduction, which reads `scale`, after what has been enqueued. Of one that fails, what it began is waited for too. */
  #onReduceStream(scale: DeviceScalar, reduce: () => Work): void {
    void scale.ptr; // copied on the compute stream, if need be
    const { streams } = this.computeDevice;
    streams.get("reduce").wait(streams.current.record());
    streams.on("reduce", () => {
      try {
        this.#reduction = reduce();
      } catch (error) {
        this.#reduction = enqueuedWork(this.computeDevice);
        throw error;
      }
    });
  }

  /** A copy of the unsharded gradient with each rank's chunk contiguous, where the dim that a parameter is cut along is not the first. */
  #inShards(unsharded: DevicePtr): Buffer | undefined {
    const [{ chunks, world }, { reduceDtype }] = [this.plan, this.unit.policy];
    if (chunks === undefined || chunks.dim === 0) return undefined;
    const bytes = world * this.length * reduceDtype.byteLength;
    const shards = Buffer.allocate(this.computeDevice, bytes, `${this.name} gradient chunks`, "gradients");
    copyChunks(this.computeDevice, reduceDtype, chunks, { unsharded, shards: shards.ptr, world, to: "shards" });
    return shards;
  }

  /** Adds sums to the sharded gradient; where there is none, they become it. */
  #addToShardedGrad(sums: Buffer): void {
    const { device } = this;
    using own = this.#onShardDevice(sums);
    if (this.#shardedGrad === undefined) {
      own.retain();
      this.#shardedGrad = own;
      return;
    }
    const { ptr: dst } = this.#shardedGrad;
    device.kernels.accumulate({ dstDtype: float32, srcDtype: float32, n: this.length, dst, src: own.ptr });
  }

  /** A reference on sums on the shard's device: the sums themselves, or a copy of them. */
  #onShardDevice(sums: Buffer): Buffer {
    const { device } = this;
    if (sums.device === device) {
      sums.retain();
      return sums;
    }
    const copy = this.#allocateShardedGrad(device);
    copyAcross({ device, ptr: copy.ptr }, { device: sums.device, ptr: sums.ptr }, sums.byteLength);
    return copy;
  }

  #allocateShardedGrad(device: Device): Buffer {
    const bytes = this.length * float32.byteLength;
    return Buffer.allocate(device, bytes, `${this.name} gradient shard`, "gradient shards");
  }

  #waitForReduction(): void {
    this.#reduction?.wait();
    this.#reduction = undefined;
  }

  #freeUnshardedGrad(): void {
    this.#unshardedGrad?.release();
    this.#unshardedGrad = undefined;
  }

  #shardStarts(step: number): number[] {
    return Array.from({ length: this.plan.world }, (_, rank) => rank * step);
  }
}
