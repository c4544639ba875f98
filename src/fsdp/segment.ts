/**
 * One flat segment of a unit: its parameters, which are views of the unsharded buffer (`gathered.ts`), and their gradients
 * (`gradients.ts`), which `reduction.ts` reduces. `states.ts` says which memory there is when, and who frees it.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Phase } from "../comm/call.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { convertElements } from "../device/convert.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import type { StatePool } from "../device/state_pool.ts";
import { type DType, float32 } from "../dtype.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { InternalError } from "../errors.ts";
import { asQuantized } from "../quantized.ts";
import { denseLayout, numelOf } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { FlatShard } from "../tensor/parameter_storage.ts";
import { copyChunks, GatheredParameters } from "./gathered.ts";
import { SegmentGradients } from "./gradients.ts";
import { planParts, type SegmentPlan, shardLayoutOf } from "./layout.ts";
import { copyOwned } from "./owned_values.ts";
import { ShardedStorage } from "./param.ts";
import type { GatherExtension } from "./policy.ts";
import { reduceSegment } from "./reduction.ts";
import { takeAll } from "../unwind.ts";
import type { FsdpUnit } from "./unit.ts";

/** Options in which the segments of a unit differ. */
export interface SegmentOptions {
  /** Text that is appended to the unit's name, to name the segment. @default none */
  readonly suffix?: string;
  /** Plan of a segment whose only parameter is cut along a dim. @default flat: the parameters follow each other */
  readonly plan?: SegmentPlan;
  /** Gathers the segment's only parameter in a form of its own. */
  readonly extension?: GatherExtension | undefined;
  /** The dtype of the master values; narrower than float32, or quantized, for frozen parameters only. @default float32 */
  readonly dtype?: DType;
}

/** A flat segment of one unit. */
export class FlatSegment implements FlatShard {
  /** The device that computes with the parameters and reduces their gradients. */
  readonly computeDevice: Device;
  /** The unit that the segment belongs to. */
  readonly unit: FsdpUnit;
  readonly plan: SegmentPlan;
  readonly dtype: DType;
  readonly storages: readonly ShardedStorage[];
  readonly gradients: SegmentGradients;
  readonly #nameOf: () => string;
  readonly #parameters: GatheredParameters;

  /**
   * Opens the window. Collective: where it fails on a rank, it fails on all. Steps:
   * 1. this constructor;
   * 2. {@link allocateShard};
   * 3. {@link copyFrom} for each parameter that has values;
   * 4. {@link bindParameters}, the only step that changes parameters.
   */
  constructor(
    unit: FsdpUnit,
    parameters: readonly Parameter[],
    { suffix = "", plan, extension, dtype = float32 }: SegmentOptions,
  ) {
    const first = parameters[0];
    if (first === undefined) throw new InternalError("a segment without parameters");
    const { group, paramDtype, reduceDtype } = unit.policy;
    this.unit = unit;
    this.computeDevice = first.device;
    const quantized = asQuantized(dtype);
    const narrowest = Math.min(
      paramDtype.byteLength,
      reduceDtype.byteLength,
      quantized === undefined ? dtype.byteLength : 1,
    );
    this.plan = plan ?? planParts(parameters, group.size, narrowest, quantized?.blockElements);
    this.#nameOf = () => `${unit.name}${plan === undefined ? suffix : ` (${first.fqn})`}`;
    this.#parameters = new GatheredParameters(first.device, this.plan, unit, this.#nameOf, dtype, extension);
    this.dtype = dtype;
    this.gradients = new SegmentGradients(this);
    this.storages = parameters.map((parameter, i) => {
      const offset = at(this.plan.offsets, i, "offset of parameter");
      const shard = shardLayoutOf(this.plan, offset, parameter.shape, group.rank);
      return new ShardedStorage(this, parameter, offset, shard, group);
    });
  }

  /** Allocates this rank's shard. It may fail on this rank alone. */
  allocateShard(): void {
    this.#parameters.allocateShard();
  }

  /** Makes the parameters views of the unsharded buffer, and frees the memory that they had. */
  bindParameters(): void {
    const { unsharded: buffer } = this.#parameters;
    const dtype = this.#parameters.computeDtype;
    for (const [i, storage] of this.storages.entries()) {
      const layout = denseLayout(storage.parameter.shape, at(this.plan.offsets, i, "offset of parameter"));
      buffer.retain();
      storage.parameter.adopt(storage, { buffer, layout, dtype });
    }
  }

  /** Copies this rank's elements of a parameter from its unsharded values. Between {@link beginWrite} and {@link endWrite}. */
  copyFrom(parameter: Parameter, from: DevicePtr, fromDtype: DType): void {
    const storage = this.storages.find((one) => one.parameter === parameter);
    if (storage === undefined) throw new InternalError(`'${parameter.fqn}' is not in '${this.name}'`);
    copyOwned(this, storage, from, fromDtype);
    storage.materialize();
  }

  /** The present name of the unit, followed by the suffix or the name of the only parameter. */
  get name(): string {
    return this.#nameOf();
  }

  get device(): Device {
    return this.#parameters.shardDevice;
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
    return this.gradients.shardedPtr;
  }

  beginWrite(): void {
    this.unit.reshard(); // the unsharded buffer would keep the old values
    this.#parameters.beginWrite();
  }

  endWrite(): void {
    this.#parameters.endWrite();
  }

  /** Begins to gather the parameters. They may be used after {@link waitForGather}. */
  unshard(phase: Phase): void {
    for (const { parameter } of this.storages) parameter.requireValues();
    this.#parameters.unshard(phase, this.unit.custom.allGather);
  }

  /** Makes all that is enqueued from now on wait for the gather under way. */
  waitForGather(): void {
    this.#parameters.wait();
  }

  /** Reshards; with `postForwardGroup`, each of its ranks keeps its shard of the unsharded parameters. */
  reshard(postForwardGroup?: ProcessGroup): void {
    if (postForwardGroup === undefined) this.#parameters.reshard();
    else this.#parameters.reshardPostForward(postForwardGroup);
  }

  /** True if ops may write gradients straight to the unsharded gradient: its dtype is at least as wide as the compute dtype. */
  get writesDirectly(): boolean {
    return this.unit.policy.reduceDtype.byteLength >= this.unit.policy.paramDtype.byteLength;
  }

  /** Sums the unsharded gradient over the ranks that share the unit. Parameters without a gradient count as zero. */
  reduceScatter(scale: DeviceScalar): void {
    if (!this.storages.some(({ parameter }) => parameter.requiresGrad)) return;
    for (const storage of this.storages) storage.prepareReduction();
    reduceSegment(this, scale);
  }

  /** True if gradients are reduced, over replicas too, and `parameter.grad` is not set yet. */
  get isReduced(): boolean {
    return !this.gradients.isPartial && this.storages.some(({ isGradPending }) => isGradPending);
  }

  /** Sets the gradients of those parameters that some rank used. See Note [Unused parameters]. */
  publishGrads(used: ReadonlySet<ShardedStorage>): void {
    this.gradients.waitForReduction();
    for (const storage of this.storages) storage.publishGrad(used.has(storage));
  }

  /** Clears all gradients after a failed pass. Gradients of earlier passes go too: the failed pass may be part of their sums. */
  abandonPass(): void {
    takeAll([
      () => this.gradients.waitForReduction(),
      ...this.storages.map((storage) => () => storage.clearGradient()),
    ]);
  }

  /**
   * Called when a storage has cleared its gradient. Frees the segment's gradients if no parameter has one left; else writes zeros over
   * this parameter's elements, since the next reduction adds to them.
   */
  releaseGradient({ shard }: ShardedStorage): void {
    this.gradients.waitForReduction();
    if (this.storages.some((storage) => storage.holdsGradient)) this.gradients.zero(shard);
    else this.gradients.free();
  }

  /** Frees everything. Bound parameters become plain ones without memory. Collective. */
  dispose(): void {
    this.gradients.waitForReduction();
    for (const storage of this.storages) if (storage.parameter.storage === storage) storage.parameter.release();
    this.#parameters.dispose();
  }

  /**
   * Gathers the master weights on the compute device, and calls `use` with the unsharded float32 values of each parameter that has
   * some. The values are freed at the end. Collective.
   *
   * @param ready allocates what `use` needs, before the gather: where that fails on a rank, it fails on all
   */
  lendValues(use: (parameter: Parameter, values: DevicePtr) => void, ready: () => void = () => {}): void {
    const { computeDevice: device, name, length, plan: { chunks, offsets, numShards }, unit: { policy: { group } } } =
      this;
    const [bytes, { dtype }] = [length * this.dtype.byteLength, this];
    const lent = this.storages.filter((storage) => storage.hasValues());
    if (lent.length === 0) return;
    using taken = new DisposableStack();
    const allocate = (byteLength: number): Buffer =>
      taken.use(Buffer.allocate(device, byteLength, `${name} master weights`, "gathered"));
    const { values, own, dense } = group.agree(`gather the values of '${name}'`, () => {
      ready();
      const values = allocate(numShards * bytes);
      const own = this.device === device ? undefined : allocate(bytes);
      // A parameter cut along a dim is alone in its segment, in chunks, and float32.
      const dense = chunks !== undefined
        ? allocate(numelOf(chunks.shape) * float32.byteLength)
        : dtype === float32
        ? undefined
        : allocate(numShards * length * float32.byteLength);
      return { values, own, dense };
    });
    if (own !== undefined) copyAcross(own, { device: this.device, ptr: this.param }, bytes);
    group.allGather(values.ptr, own?.ptr ?? this.param, bytes, name).wait();
    if (chunks !== undefined && dense !== undefined) {
      copyChunks(device, float32, chunks, { unsharded: dense.ptr, shards: values.ptr, numShards, to: "unsharded" });
    }
    if (dtype !== float32 && dense !== undefined) {
      const cast = { dstDtype: float32, srcDtype: dtype, n: numShards * length };
      convertElements(device, { ...cast, dst: dense.ptr, src: values.ptr });
    }
    for (const [i, storage] of this.storages.entries()) {
      if (!storage.hasValues()) continue;
      const offset = at(offsets, i, "offset of parameter") * float32.byteLength;
      use(storage.parameter, devicePtr((dense ?? values).ptr + offset));
    }
  }
}
