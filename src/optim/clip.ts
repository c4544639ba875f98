/**
 * Gradient norms and clipping, all on the device: the host waits for nothing unless it reads the norm. The norm is exact up to
 * each block's own sum: blocks are summed in float64 in a fixed order and the block sums in integers, so neither the cut into
 * shards nor the number of ranks changes a bit of it.
 *
 * Note [Gate]: with a norm goes a word that keeps the optimizer from changing anything, on any rank, when a kernel of some rank
 * met a fault. Faults are counted in the accumulators, which are summed over ranks anyway.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { float32, int64 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { isDense } from "../shape.ts";
import { zeros } from "../tensor/create.ts";
import type { NormReducer, Parameter } from "../tensor/parameter.ts";
import { SHARD_BLOCK } from "../tensor/shard_layout.ts";
import { Tensor } from "../tensor/tensor.ts";
import { requireReduced } from "./reduced.ts";

const { ACCUMULATOR_WORDS } = CONSTANTS;

const ACCUMULATOR_BYTES = ACCUMULATOR_WORDS * int64.byteLength;

/**
 * One accumulator for each way of reducing, so that each is summed over its ranks once. Squares are added where a gradient lies;
 * of those that lie elsewhere only the sum comes to the device.
 */
class Accumulators {
  readonly #device: Device;
  readonly #buffers = new Map<NormReducer | undefined, Buffer>();
  /** For gradients on other devices. */
  readonly #elsewhere = new Map<NormReducer | undefined, Map<Device, Buffer>>();

  constructor(device: Device) {
    this.#device = device;
  }

  of(reducer: NormReducer | undefined): DevicePtr {
    let buffer = this.#buffers.get(reducer);
    if (buffer === undefined) {
      buffer = newAccumulator(this.#device);
      this.#buffers.set(reducer, buffer);
    }
    return buffer.ptr;
  }

  #on(device: Device, reducer: NormReducer | undefined): DevicePtr {
    if (device === this.#device) return this.of(reducer);
    const buffers = this.#elsewhere.get(reducer) ?? new Map<Device, Buffer>();
    this.#elsewhere.set(reducer, buffers);
    const buffer = buffers.get(device) ?? newAccumulator(device);
    buffers.set(device, buffer);
    return buffer.ptr;
  }

  /** Adds another parameter's gradient. */
  add(parameter: Parameter): void {
    const { grad, storage: { normReducer } } = parameter;
    if (grad === undefined) return;
    const accumulator = this.#on(grad.device, normReducer);
    if (!isDense(grad.layout)) throw new ArgumentError(`The gradient of '${parameter.fqn}' must be dense`);
    const { device, dtype, numel: n, ptr: src } = grad;
    device.kernels.sumSquares({ dtype, n, block: SHARD_BLOCK, accumulator, src });
  }

  /** Sums over ranks and adds all up: the one accumulator of everything. */
  total(): DevicePtr {
    for (const [reducer, buffers] of this.#elsewhere) {
      for (const buffer of buffers.values()) this.#fetch(buffer, reducer);
    }
    for (const [reducer, { ptr }] of this.#buffers) reducer?.sumLimbs(ptr, ACCUMULATOR_WORDS);
    const dst = this.of(this.#buffers.keys().next().value);
    const sources = Array.from(this.#buffers.values(), ({ ptr }) => ptr);
    if (sources.length > 1) this.#sum(dst, sources);
    return dst;
  }

  [Symbol.dispose](): void {
    const elsewhere = [...this.#elsewhere.values()].flatMap((buffers) => [...buffers.values()]);
    for (const buffer of [...this.#buffers.values(), ...elsewhere]) buffer.release();
  }

  /** Adds what was summed on another device. */
  #fetch({ device, ptr }: Buffer, reducer: NormReducer | undefined): void {
    const copy = newAccumulator(this.#device);
    copyAcross({ device: this.#device, ptr: copy.ptr }, { device, ptr }, ACCUMULATOR_BYTES);
    const dst = this.of(reducer);
    this.#sum(dst, [dst, copy.ptr]);
    copy.release();
  }

  #sum(dst: DevicePtr, sources: readonly DevicePtr[]): void {
    const sum = { dtype: int64, dstDtype: int64, n: ACCUMULATOR_WORDS, accumulate: false };
    this.#device.kernels.sumRanks({ ...sum, dst, sources });
  }
}

function newAccumulator(device: Device): Buffer {
  const buffer = Buffer.allocate(device, ACCUMULATOR_BYTES, "gradient norm");
  device.kernels.clearAccumulator({ accumulator: buffer.ptr });
  return buffer;
}

/** What a norm is taken for. */
interface NormPurpose {
  readonly maxNorm: number;
  readonly errorIfNonfinite: boolean;
  /** Where the factor goes that clips to `maxNorm`. */
  readonly factor?: DevicePtr;
  /** Parameters whose gradients count; default: all. */
  readonly counted?: readonly Parameter[];
}

function deviceOf([first]: readonly Parameter[]): Device {
  if (first === undefined) throw new ArgumentError("Cannot take the norm of the gradients of no parameters");
  return first.device;
}

/** Writes the norm and the gate of the gradients there are. */
function takeNorm(parameters: readonly Parameter[], purpose: NormPurpose): Tensor {
  const { maxNorm, errorIfNonfinite, factor, counted = parameters } = purpose;
  const device = deviceOf(parameters);
  using accumulators = new Accumulators(device);
  for (const { storage } of parameters) accumulators.of(storage.normReducer);
  for (const parameter of counted) accumulators.add(parameter);
  const accumulator = accumulators.total();
  const norm = zeros(device, []);
  const gate = device.status.makeGate(parameters);
  device.kernels.clipFactor({ maxNorm, errorIfNonfinite, norm: norm.ptr, factor, gate, accumulator });
  return norm;
}

/**
 * The 2-norm of all gradients together, over all ranks, as a float32 scalar. Every rank must call it.
 *
 * @param parameters a parameter without a gradient counts as zero
 * @returns the norm; NaN or Infinity if a gradient is not finite
 * @throws {ArgumentError} if there are none, or nothing reduces some beside sharded ones
 */
export function gradNorm(parameters: Iterable<Parameter>): Tensor {
  const list = [...parameters];
  requireReduced(list, "take the norm of gradients");
  return takeNorm(list, { maxNorm: Infinity, errorIfNonfinite: false });
}

/** Options of {@link clipGradNorm}. */
export interface ClipOptions {
  /** Whether a norm that is not finite is an error, and keeps the optimizer from changing anything: false */
  readonly errorIfNonfinite?: boolean;
}

/**
 * Scales all gradients so that their norm is at most `maxNorm` (PyTorch's `clip_grad_norm_`). Every rank must call it.
 *
 * @returns the norm before clipping, a float32 scalar
 * @throws {ArgumentError} if `maxNorm` is not positive, there are no parameters, or nothing reduces some beside sharded ones
 * @throws {NonFiniteError} if the norm had to be finite and is not; on a device that tells late, when a value is read
 */
export function clipGradNorm(parameters: Iterable<Parameter>, maxNorm: number, options: ClipOptions = {}): Tensor {
  const { errorIfNonfinite = false } = options;
  if (!(maxNorm > 0)) throw new ArgumentError(`Cannot clip to norm ${maxNorm}: it must be positive`);
  const list = [...parameters];
  requireReduced(list, "clip gradients");
  const device = deviceOf(list);
  const { status } = device;
  using factor = Tensor.empty(device, [], float32, "clip factor");
  const factors = new Map([[device, factor]]);
  let norm: Tensor | undefined;
  try {
    norm = takeNorm(list, { maxNorm, errorIfNonfinite, factor: factor.ptr });
    if (!status.isLate) status.check();
    for (const { grad } of list) {
      if (grad === undefined) continue;
      const { dtype, numel: n, ptr } = grad;
      const own = factors.get(grad.device) ?? copyOf(factor, grad.device);
      factors.set(grad.device, own);
      grad.device.kernels.scaleBy({ dtype, n, dst: ptr, src: ptr, factor: own.ptr });
    }
    return norm;
  } catch (error) {
    norm?.dispose();
    throw error;
  } finally {
    for (const copy of factors.values()) copy.dispose();
  }
}

/** A tensor on another device; in no scope. */
function copyOf(tensor: Tensor, device: Device): Tensor {
  const copy = Tensor.empty(device, tensor.shape, tensor.dtype, tensor.buffer.owner);
  copyAcross(copy, tensor, tensor.numel * tensor.dtype.byteLength);
  return copy;
}

/**
 * The gate of an update: that of the last norm, or, where faults are told late and no norm was taken of these gradients, one
 * made of the faults of all ranks. See Note [Gate].
 */
export function gateOf(parameters: readonly Parameter[]): DevicePtr | "closed" | undefined {
  const { status } = deviceOf(parameters);
  const gate = status.gateOf(parameters);
  if (gate !== undefined || !status.isLate) return gate;
  using _norm = takeNorm(parameters, { maxNorm: Infinity, errorIfNonfinite: false, counted: [] });
  return status.gateOf(parameters);
}
