/**
 * Gradients that are reduced together: one flat array that the parameters' gradients are written to.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { Tensor } from "../tensor/tensor.ts";

/** PyTorch's size of a bucket, in bytes. */
const BUCKET_BYTES = 25 * 2 ** 20;

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

/** One bucket. It has memory from the first gradient of a step until all are cleared: the gradients alone keep it. */
export class GradientBucket {
  readonly #parameters: readonly Parameter[];
  readonly #offsets = new Map<Parameter, number>();
  readonly #numel: number;
  #buffer: Buffer | undefined;

  constructor(parameters: readonly Parameter[]) {
    this.#parameters = parameters;
    let offset = 0;
    for (const parameter of parameters) {
      this.#offsets.set(parameter, offset);
      offset += Math.ceil(parameter.numel / 64) * 64;
      parameter.placeGradients(() => this.#place(parameter));
    }
    this.#numel = offset;
  }

  /** Sums the bucket over ranks, times `scale`; parameters without a gradient count as zero and have one afterwards. */
  reduce(group: ProcessGroup, scale: number, label: string): void {
    for (const parameter of this.#parameters) {
      if (parameter.grad !== undefined) continue;
      const place = this.#place(parameter);
      parameter.device.kernels.fill(float32, place.ptr, place.numel, 0);
      parameter.storage.sink.contribute(place);
      parameter.storage.sink.finish();
    }
    const buffer = this.#buffer;
    if (buffer === undefined) throw new InternalError("a bucket without memory");
    this.#clearGaps(buffer);
    group.allReduce(buffer.ptr, this.#numel, float32, { op: "sum", scale, label }).wait();
  }

  /** Lets go of the parameters; their gradients are gone. */
  dispose(): void {
    for (const parameter of this.#parameters) parameter.placeGradients(undefined);
  }

  #place(parameter: Parameter): Tensor {
    if (this.#buffer === undefined || this.#buffer.disposed) {
      this.#buffer = Buffer.allocate(parameter.device, this.#numel * float32.byteLength, "gradient bucket");
    } else this.#buffer.retain();
    return new Tensor(this.#buffer, denseLayout(parameter.shape, this.#offsets.get(parameter) ?? 0), float32);
  }

  /** The gaps between parameters are summed along: zeros keep them so. */
  #clearGaps(buffer: Buffer): void {
    for (const [parameter, offset] of this.#offsets) {
      const end = offset + parameter.numel;
      const gap = Math.ceil(parameter.numel / 64) * 64 - parameter.numel;
      if (gap > 0) parameter.device.kernels.fill(float32, devicePtr(buffer.ptr + end * 4), gap, 0);
    }
  }
}
