/**
 * The memory of one segment's gradients, in up to three forms; `states.ts` says when each is freed:
 * - unsharded gradient: the shards of all ranks in the reduce dtype, from the first contribution of a backward to its reduction.
 * - partial gradient: this rank's shard in float32, where replicas or a hook follow the reduce-scatter; it waits for them.
 * - sharded gradient: this rank's shard in float32, on the shard's device, from the first reduction until gradients are cleared.
 *
 * Backward passes write the unsharded gradient on the compute stream. `reduction.ts` writes the other two on the reduce stream. A
 * reader of the sharded gradient calls {@link SegmentGradients.waitForReduction} first.
 *
 * @module
 */
import { enqueuedWork, type Work } from "../comm/data_plane.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr, NO_PTR } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import { Tensor } from "../tensor/tensor.ts";
import type { FlatSegment } from "./segment.ts";
import {
  MemoryState,
  type ReducedGradientMove,
  type ReducedGradientState,
  SEGMENT_MOVES,
  type UnshardedGradientMove,
  type UnshardedGradientState,
} from "./states.ts";

/** A float32 shard that a reduce-scatter writes. */
export interface ShardSum {
  readonly buffer: Buffer;
  /** True if the shard was just allocated: it holds no earlier sums. */
  readonly isNew: boolean;
}

/** The memory of a segment's gradients. */
export class SegmentGradients {
  readonly #segment: FlatSegment;
  readonly #unshardedState: MemoryState<UnshardedGradientState, UnshardedGradientMove>;
  readonly #reducedState: MemoryState<ReducedGradientState, ReducedGradientMove>;
  #unsharded: Buffer | undefined;
  #partial: Buffer | undefined;
  #sharded: Buffer | undefined;
  /** The last reduction, if the compute stream has not waited for it yet. */
  #reduction: Work | undefined;

  constructor(segment: FlatSegment) {
    this.#segment = segment;
    const nameOf = (): string => segment.name;
    this.#unshardedState = new MemoryState(SEGMENT_MOVES.unshardedGradient, nameOf);
    this.#reducedState = new MemoryState(SEGMENT_MOVES.reducedGradient, nameOf);
  }

  /** True if there are gradients to reduce. */
  get isAccumulating(): boolean {
    return this.#unshardedState.state === "accumulating";
  }

  /** True if reduced gradients are still to be summed over replicas, or given to a hook. */
  get isPartial(): boolean {
    return this.#reducedState.state === "partial";
  }

  /** Address of the sharded gradient; none before the first reduction. */
  get shardedPtr(): DevicePtr {
    return this.#sharded?.ptr ?? NO_PTR;
  }

  /** A view of one parameter's slice of the unsharded gradient buffer, which the first call allocates. */
  viewOf(parameter: Parameter, offset: number): Tensor {
    const { computeDevice, length, name, plan: { numShards }, unit: { policy: { reduceDtype } } } = this.#segment;
    const bytes = numShards * length * reduceDtype.byteLength;
    this.#unsharded ??= Buffer.allocate(computeDevice, bytes, `${name} gradients`, "gradients");
    this.#unshardedState.take("contribute");
    this.#unsharded.retain();
    return new Tensor(this.#unsharded, denseLayout(parameter.shape, offset), reduceDtype);
  }

  /** The unsharded gradient, for a reduction; {@link handOver} comes when that is enqueued. */
  get unsharded(): Buffer {
    if (this.#unsharded === undefined) throw new InternalError(`'${this.#segment.name}' has no gradients to reduce`);
    return this.#unsharded;
  }

  /**
   * Called when the reduction of the unsharded gradient is enqueued on this stream: the root takes the gradient over, and frees it
   * there. See Note [Reductions].
   */
  handOver(reduction: Work): void {
    if (this.#unsharded === undefined) return; // a reduction by a function of the user has cleared it
    this.#unshardedState.take("hand over");
    this.#segment.unit.rootInputs.hold({ input: this.#unsharded, reduction, unit: this.#segment.name });
    this.#unsharded = undefined;
  }

  /** The sharded gradient, to be written by a reduce-scatter. */
  shardedSum(): ShardSum {
    const before = this.#sharded;
    const buffer = this.#sharded ??= this.allocateShard(this.#segment.device);
    this.#reducedState.take("reduce");
    return { buffer, isNew: before === undefined };
  }

  /** The partial gradient, to be written by a reduce-scatter. */
  partialSum(): ShardSum {
    const before = this.#partial;
    const buffer = this.#partial ??= this.allocateShard(this.#segment.computeDevice);
    this.#reducedState.take("reduce partially");
    return { buffer, isNew: before === undefined };
  }

  /** Hands the partial gradient to the caller, who adds it to the sharded gradient and frees it. */
  takePartial(): Buffer {
    const partial = this.#partial;
    if (partial === undefined) throw new InternalError(`'${this.#segment.name}' has no partial gradient`);
    this.#reducedState.take("all-reduce");
    this.#partial = undefined;
    return partial;
  }

  /** Adds sums to the sharded gradient. If there is none yet, the sums become it; if the shard is offloaded, a copy of them does. */
  addToSharded(sums: Buffer): void {
    const { device, length } = this.#segment;
    using own = this.#onShardDevice(sums);
    this.#reducedState.take("reduce");
    if (this.#sharded === undefined) {
      own.retain();
      this.#sharded = own;
      return;
    }
    const { ptr: dst } = this.#sharded;
    device.kernels.accumulate({ dstDtype: float32, srcDtype: float32, n: length, dst, src: own.ptr });
  }

  /** Memory for a shard in float32, uninitialized. */
  allocateShard(device: Device): Buffer {
    const { name, length } = this.#segment;
    return Buffer.allocate(device, length * float32.byteLength, `${name} gradient shard`, "gradient shards");
  }

  /** Calls `reduce`, which enqueues a reduction. If it throws, later waits also cover the work that it had enqueued. */
  enqueueReduction(reduce: () => Work): void {
    try {
      this.#reduction = reduce();
    } catch (error) {
      this.#reduction = enqueuedWork(this.#segment.computeDevice);
      throw error;
    }
  }

  /** Makes all work that is enqueued from now on wait for the last reduction. */
  waitForReduction(): void {
    const reduction = this.#reduction;
    if (reduction === undefined) return;
    this.#reduction = undefined;
    this.#reducedState.take("wait for");
    reduction.wait();
  }

  /** A handle on one parameter's elements of the sharded gradient; undefined before the first reduction. */
  sharded({ offset, numel }: ShardLayout): Tensor | undefined {
    if (this.#sharded === undefined) return undefined;
    this.#sharded.retain();
    return new Tensor(this.#sharded, denseLayout([numel], offset), float32);
  }

  /** Writes zeros over one parameter's elements of the reduced gradients, as the other elements are still in use. */
  zero({ offset, numel: n }: ShardLayout): void {
    for (const sum of [this.#sharded, this.#partial]) {
      if (sum === undefined) continue;
      const dst = devicePtr(sum.ptr + offset * float32.byteLength);
      sum.device.kernels.fill({ dtype: float32, n, value: 0, dst });
    }
  }

  /** Frees the unsharded, partial and sharded gradients, on the current stream. */
  free(): void {
    this.#unshardedState.take("free");
    this.#reducedState.take("free");
    for (const buffer of [this.#sharded, this.#partial, this.#unsharded]) buffer?.release();
    this.#sharded = undefined;
    this.#partial = undefined;
    this.#unsharded = undefined;
  }

  /** A reference on sums on the shard's device: the sums themselves, or a copy of them. */
  #onShardDevice(sums: Buffer): Buffer {
    const { device } = this.#segment;
    if (sums.device === device) {
      sums.retain();
      return sums;
    }
    const copy = this.allocateShard(device);
    copyAcross({ device, ptr: copy.ptr }, { device: sums.device, ptr: sums.ptr }, sums.byteLength);
    return copy;
  }
}
