/**
 * Gradient norms and clipping. The norm is exact up to each 64-element block's own sum: blocks are summed in float64 in a fixed
 * order and the block sums in integers, so neither the cut into shards nor the number of ranks changes a bit of it.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, devicePtr } from "../device/device.ts";
import { int64 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { NormReducer, Parameter } from "../tensor/parameter.ts";
import { isDense } from "../shape.ts";

/** Elements whose squares are summed in float64 before the exact sum: every cut between ranks falls on a multiple. */
const BLOCK = 64;

/** One accumulator for each way of reducing, so that each is summed over its ranks once. */
class Accumulators {
  readonly #device: Device;
  readonly #buffers = new Map<NormReducer | undefined, Buffer>();

  constructor(device: Device) {
    this.#device = device;
  }

  of(reducer: NormReducer | undefined): Buffer {
    let buffer = this.#buffers.get(reducer);
    if (buffer === undefined) {
      const { kernels } = this.#device;
      buffer = Buffer.allocate(this.#device, kernels.accumulatorBytes, "gradient norm");
      kernels.fill(int64, buffer.ptr, kernels.accumulatorBytes / int64.byteLength, 0);
      this.#buffers.set(reducer, buffer);
    }
    return buffer;
  }

  /** Sums over ranks and adds all up. */
  value(): number {
    const { kernels } = this.#device;
    const limbs = kernels.accumulatorBytes / int64.byteLength;
    for (const [reducer, buffer] of this.#buffers) reducer?.sumLimbs(buffer.ptr, limbs);
    const [first, ...others] = [...this.#buffers.values()];
    if (first === undefined) return 0;
    if (others.length > 0) {
      kernels.sumRanks(int64, int64, first.ptr, [first.ptr, ...others.map(({ ptr }) => ptr)], limbs, 1, false);
    }
    return kernels.accumulatorValue(first.ptr);
  }

  dispose(): void {
    for (const buffer of this.#buffers.values()) buffer.release();
  }
}

/**
 * The 2-norm of all gradients together, over all ranks. Every rank must call it.
 *
 * @param parameters those that have no gradient count nothing
 * @returns the norm; NaN or Infinity if a gradient is not finite
 */
export function gradNorm(parameters: Iterable<Parameter>): number {
  let accumulators: Accumulators | undefined;
  try {
    for (const parameter of parameters) {
      accumulators ??= new Accumulators(parameter.device);
      const buffer = accumulators.of(parameter.storage.normReducer);
      const grad = parameter.grad;
      if (grad === undefined || grad.numel === 0) continue;
      if (!isDense(grad.layout)) throw new ArgumentError(`The gradient of '${parameter.fqn}' must be dense`);
      const { kernels } = parameter.device;
      const [blocks, rest] = [Math.floor(grad.numel / BLOCK), grad.numel % BLOCK];
      const end = devicePtr(grad.ptr + blocks * BLOCK * grad.dtype.byteLength);
      kernels.sumSquares(grad.dtype, buffer.ptr, grad.ptr, blocks, BLOCK);
      if (rest > 0) kernels.sumSquares(grad.dtype, buffer.ptr, end, 1, rest);
    }
    return Math.sqrt(accumulators?.value() ?? 0);
  } finally {
    accumulators?.dispose();
  }
}

/**
 * Scales all gradients so that their norm is at most `maxNorm` (PyTorch's `clip_grad_norm_`). Every rank must call it.
 *
 * @returns the norm before clipping
 * @throws {ArgumentError} if `maxNorm` is not positive
 */
export function clipGradNorm(parameters: Iterable<Parameter>, maxNorm: number): number {
  if (!(maxNorm > 0)) throw new ArgumentError(`Cannot clip to norm ${maxNorm}: it must be positive`);
  const list = [...parameters];
  const norm = gradNorm(list);
  const factor = maxNorm / (norm + 1e-6);
  if (!(factor < 1)) return norm;
  for (const { grad, device } of list) {
    if (grad !== undefined && grad.numel > 0) device.kernels.scale(grad.dtype, grad.ptr, grad.ptr, grad.numel, factor);
  }
  return norm;
}
