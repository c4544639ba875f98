/**
 * One replicated parameter: its full values stay in their memory, with a copy in the compute dtype where that is another; its
 * gradient lies in a bucket.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout } from "../shape.ts";
import type { NormReducer } from "../tensor/norm_reducer.ts";
import { GradientSlot } from "../tensor/gradient_slot.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ComputeView, FlatShard, GradientReducer, ParameterStorage } from "../tensor/parameter_storage.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { GradientBucket } from "./bucket.ts";

/** A copy of a parameter's values that is computed with in another dtype: every write of the values renews it. */
class ComputeCopy implements FlatShard {
  /** The memory of the copy; the parameter owns it. */
  readonly buffer: Buffer;
  readonly device: Device;
  readonly length: number;
  /** The values' dtype. */
  readonly dtype = float32;
  readonly #values: FlatShard;
  readonly #dtype: DType;

  constructor({ fqn, storage: { flatShard } }: Parameter, dtype: DType) {
    this.device = flatShard.device;
    this.length = flatShard.length;
    this.buffer = Buffer.empty(
      flatShard.device,
      flatShard.length * dtype.byteLength,
      `${fqn} as ${dtype.name}`,
      "parameters",
    );
    this.#values = flatShard;
    this.#dtype = dtype;
  }

  get param(): DevicePtr {
    return this.#values.param;
  }

  get grad(): DevicePtr {
    return this.#values.grad;
  }

  beginWrite(): void {
    this.#values.beginWrite();
  }

  endWrite(): void {
    this.#values.endWrite();
    this.renew();
  }

  /** Gives the copy memory, where it has none. */
  open(): void {
    if (!this.buffer.hasMemory) this.buffer.allocateMemory();
  }

  /** Gives the copy the values. */
  renew(): void {
    this.open();
    const [dst, src] = [this.buffer.ptr, this.param];
    this.device.kernels.cast({ dstDtype: this.#dtype, srcDtype: float32, n: this.length, dst, src });
    this.buffer.version++;
  }
}

/** The storage of a replicated parameter. */
export class ReplicatedStorage implements ParameterStorage {
  readonly kind = "replicated";
  readonly parameter: Parameter;
  readonly shard: ShardLayout;
  readonly flatShard: FlatShard;
  readonly reducer: GradientReducer;
  /** The view of the values that kernels compute with, if it is not the values themselves. */
  readonly computeView: ComputeView | undefined;
  readonly normReducer: NormReducer | undefined;
  /** The gradient of the passes since the last reduction. */
  readonly sink: GradientSlot;
  /** The memory of the values. */
  readonly #values: ParameterStorage;
  readonly #copy: ComputeCopy | undefined;
  #used = false;
  /** The gradient of all reductions since it was cleared; hidden until some rank has used the parameter. */
  #reduced: Tensor | undefined;
  #shown = false;

  /**
   * @param parameter a plain one
   * @param reducer the replicated module
   * @param bucketOf joins the pass under way and gives the bucket where the gradient is summed
   * @param paramDtype dtype of the computation
   */
  constructor(
    parameter: Parameter,
    reducer: GradientReducer,
    bucketOf: (storage: ReplicatedStorage) => GradientBucket,
    paramDtype: DType,
  ) {
    this.parameter = parameter;
    this.reducer = reducer;
    this.#values = parameter.storage;
    this.shard = this.#values.shard;
    this.normReducer = this.#values.normReducer;
    this.#copy = paramDtype === float32 || parameter.quantized !== undefined
      ? undefined
      : new ComputeCopy(parameter, paramDtype);
    this.flatShard = this.#copy ?? this.#values.flatShard;
    this.sink = new GradientSlot({
      place: () => bucketOf(this).place(this),
      dtype: float32,
      onContribution: () => {
        this.#used = true;
        bucketOf(this);
      },
    });
    if (this.#copy !== undefined) {
      this.computeView = { buffer: this.#copy.buffer, layout: denseLayout(parameter.shape), dtype: paramDtype };
    }
  }

  /** Allocates what {@link adopt} needs. It may fail on this rank alone. */
  open(): void {
    if (this.hasValues()) this.#copy?.open();
  }

  /** Gives up what {@link open} has allocated, where {@link adopt} does not follow. */
  discard(): void {
    this.#copy?.buffer.release();
  }

  /** Becomes the parameter's storage. */
  adopt(): void {
    if (this.hasValues()) this.#copy?.renew();
    this.parameter.adopt(this, this.computeView);
  }

  /** True if a backward on this rank has reached the parameter since its gradient was cleared. */
  get used(): boolean {
    return this.#used;
  }

  hasValues(): boolean {
    return this.#values.hasValues();
  }

  materialize(): void {
    this.#values.materialize();
  }

  vacate(): void {
    this.#values.vacate();
    this.#copy?.buffer.freeMemory();
  }

  hasUnreduced(): boolean {
    return this.sink.gradient() !== undefined;
  }

  gradient(): Tensor | undefined {
    return this.#shown ? this.#reduced : undefined;
  }

  clearGradient(): void {
    this.#used = false;
    this.#shown = false;
    this.#reduced?.dispose();
    this.#reduced = undefined;
    this.sink.clear();
  }

  /** Adds what was just reduced to what was reduced before; the handle becomes the storage's. */
  addReduced(sum: Tensor | undefined): void {
    if (sum === undefined) throw new InternalError(`no sum for '${this.parameter.fqn}'`);
    this.sink.clear();
    if (this.#reduced === undefined) {
      this.#reduced = sum;
      return;
    }
    const { ptr: dst, dtype: dstDtype, device, numel: n } = this.#reduced;
    device.kernels.accumulate({ dstDtype, srcDtype: sum.dtype, n, dst, src: sum.ptr });
    sum.dispose();
  }

  /** The pass has ended; some rank has used the parameter since gradients were cleared, or none has. */
  endPass(used: boolean): void {
    this.#shown = used;
    if (used) return this.parameter.announceGradient();
    this.#reduced?.dispose();
    this.#reduced = undefined;
  }
}
