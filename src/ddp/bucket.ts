/**
 * Gradients that are reduced together: one flat array that the parameters' gradients are written to.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout, type Layout } from "../shape.ts";
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

/**
 * One bucket. Gradients alone keep its memory: what a backward adds lies apart from what was reduced before, which must not be
 * scaled again.
 */
export class GradientBucket {
  readonly #parameters: readonly Parameter[];
  readonly #offsets = new Map<Parameter, number>();
  readonly #numel: number;
  /** Where backwards write until the next reduction. */
  #buffer: Buffer | undefined;
  /** The sum of all reductions since gradients were cleared. */
  #reduced: Buffer | undefined;

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

  /** Sums the bucket over ranks, times `scale`; parameters that got no gradient count as zero and have one afterwards. */
  reduce(group: ProcessGroup, scale: number, unit: string): void {
    for (const parameter of this.#parameters) {
      if (parameter.unreducedGradient !== undefined) continue;
      const place = this.#place(parameter);
      parameter.device.kernels.fill(float32, place.ptr, place.numel, 0);
      parameter.storage.sink.contribute(place);
      parameter.storage.sink.finish();
    }
    const buffer = this.#buffer;
    if (buffer === undefined) throw new InternalError("a bucket without memory");
    this.#clearGaps(buffer);
    group.allReduce(buffer.ptr, this.#numel, float32, { op: "sum", scale, unit, phase: "backward" }).wait();
    this.#keepReduced(buffer);
  }

  /** Lets go of the parameters; their gradients are gone. */
  dispose(): void {
    for (const parameter of this.#parameters) parameter.placeGradients(undefined);
  }

  /** Adds what was just reduced to what was reduced before, or makes it that. */
  #keepReduced(buffer: Buffer): void {
    const before = this.#reduced === undefined || this.#reduced.disposed ? undefined : this.#reduced;
    if (before !== undefined) {
      const { kernels } = buffer.device;
      for (const parameter of this.#parameters) {
        if (parameter.grad !== undefined && parameter.grad.buffer === before) continue;
        kernels.fill(float32, this.#at(before, parameter), parameter.numel, 0); // cleared in between
      }
      kernels.accumulate(float32, float32, before.ptr, buffer.ptr, this.#numel);
    }
    const sum = before ?? buffer;
    for (const parameter of this.#parameters) {
      sum.retain();
      parameter.adoptReducedGradient(new Tensor(sum, this.#layout(parameter), float32));
    }
    this.#reduced = sum;
    this.#buffer = undefined;
  }

  #place(parameter: Parameter): Tensor {
    if (this.#buffer === undefined || this.#buffer.disposed) {
      this.#buffer = Buffer.allocate(parameter.device, this.#numel * float32.byteLength, "gradient bucket");
    } else this.#buffer.retain();
    return new Tensor(this.#buffer, this.#layout(parameter), float32);
  }

  #layout(parameter: Parameter): Layout {
    return denseLayout(parameter.shape, this.#offsets.get(parameter) ?? 0);
  }

  /** Address of a parameter's gradient. */
  #at(buffer: Buffer, parameter: Parameter): DevicePtr {
    return devicePtr(buffer.ptr + (this.#offsets.get(parameter) ?? 0) * float32.byteLength);
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
