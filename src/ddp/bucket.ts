/**
 * Gradients that are reduced together: one flat array that the parameters' gradients are written to.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout } from "../shape.ts";
import { Tensor } from "../tensor/tensor.ts";
import type { ReplicatedStorage } from "./param.ts";

/** PyTorch's size of a bucket, in bytes. */
const BUCKET_BYTES = 25 * 2 ** 20;

/** Elements that every gradient starts on a multiple of. */
const ALIGNMENT = 64;

/** Cuts a list of parameters, in its order, into buckets of at most `bucketBytes` (a larger parameter has its own). */
export function planBuckets<P extends { readonly numel: number }>(
  parameters: readonly P[],
  bucketBytes: number = BUCKET_BYTES,
): P[][] {
  const buckets: P[][] = [];
  let bytes = Infinity;
  for (const parameter of parameters) {
    const size = parameter.numel * float32.byteLength;
    if (bytes + size > bucketBytes) {
      buckets.push([]);
      bytes = 0;
    }
    buckets.at(-1)?.push(parameter);
    bytes += size;
  }
  return buckets;
}

/** One bucket: gradients alone keep its memory, from a first contribution until the last of them is cleared. */
export class GradientBucket {
  readonly storages: readonly ReplicatedStorage[];
  readonly #offsets = new Map<ReplicatedStorage, number>();
  readonly #numel: number;
  /** The gradients that backwards write until the next reduction. */
  #buffer: Buffer | undefined;

  constructor(storages: readonly ReplicatedStorage[]) {
    this.storages = storages;
    let offset = 0;
    for (const storage of storages) {
      this.#offsets.set(storage, offset);
      offset += Math.ceil(storage.shard.numel / ALIGNMENT) * ALIGNMENT;
    }
    this.#numel = offset;
  }

  /** A handle on the place of one gradient. */
  place(storage: ReplicatedStorage): Tensor {
    const offset = this.#offsets.get(storage);
    if (offset === undefined) throw new InternalError("a gradient that is not in this bucket");
    const { flatShard: { device }, parameter: { shape } } = storage;
    if (this.#buffer === undefined || this.#buffer.disposed) {
      this.#buffer = Buffer.allocate(device, this.#numel * float32.byteLength, "gradient bucket", "gradients");
    } else this.#buffer.retain();
    return new Tensor(this.#buffer, denseLayout(shape, offset), float32);
  }

  /**
   * Sums the bucket over ranks, times `scale`, and hands each storage its sum; gradients that are missing count as zero. Where it throws, it
   * keeps no memory of its own.
   *
   * @param dtype dtype in which the bucket is reduced
   */
  reduce(group: ProcessGroup, dtype: DType, scale: DeviceScalar, unit: string): void {
    using opened = new DisposableStack();
    const sums = this.storages.map((storage) => {
      const sum = opened.use(this.place(storage));
      const { kernels } = storage.flatShard.device;
      const unreduced = storage.sink.gradient();
      if (unreduced === undefined) kernels.fill({ dtype: float32, n: sum.numel, value: 0, dst: sum.ptr });
      // Buckets may have been cut anew since it was written.
      else if (unreduced.ptr !== sum.ptr) {
        kernels.cast({ dstDtype: float32, srcDtype: float32, n: sum.numel, dst: sum.ptr, src: unreduced.ptr });
      }
      // The gap behind it is summed along: zeros keep it so.
      const gap = Math.ceil(sum.numel / ALIGNMENT) * ALIGNMENT - sum.numel;
      const dst = devicePtr(sum.ptr + sum.numel * float32.byteLength);
      if (gap > 0) kernels.fill({ dtype: float32, n: gap, value: 0, dst });
      return sum;
    });
    const buffer = this.#buffer;
    if (buffer === undefined) throw new InternalError("a bucket without memory");
    this.#sum(buffer, dtype, (ptr) => {
      group.allReduce(ptr, this.#numel, dtype, { scale, unit, phase: "backward" }).wait();
    });
    opened.move();
    for (const [i, storage] of this.storages.entries()) storage.addReduced(sums[i]);
    this.#buffer = undefined;
  }

  /** Lets `sum` work on the bucket in `dtype`. */
  #sum({ device, ptr: wide }: Buffer, dtype: DType, sum: (ptr: DevicePtr) => void): void {
    if (dtype === float32) return sum(wide);
    const narrow = Buffer.allocate(device, this.#numel * dtype.byteLength, "narrow gradient bucket", "gradients");
    try {
      device.kernels.cast({ dstDtype: dtype, srcDtype: float32, n: this.#numel, dst: narrow.ptr, src: wide });
      sum(narrow.ptr);
      device.kernels.cast({ dstDtype: float32, srcDtype: dtype, n: this.#numel, dst: wide, src: narrow.ptr });
    } finally {
      narrow.release();
    }
  }
}
