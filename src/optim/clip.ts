/**
 * Gradient norms and clipping, all on the device. The host waits for the device in two cases only: it reads the norm, or it takes the
 * norm of other gradients before the next backward, because a device has one gate.
 *
 * Note [Gate]: the gate is a skip flag: an int32 in device memory (PyTorch's `found_inf`). Non-zero, which is closed: update kernels write
 * nothing. So a step can be skipped without the host waiting for the device:
 * 1. Taking a norm writes the gate. The gate closes if a kernel met a fault, such as an id out of range. It also closes if the norm is
 *    not finite and `errorIfNonfinite` or a scaler asks for a skipped step.
 * 2. The norm's all-reduce also sums the faults of its ranks. So all ranks that share shards update, or none of them. Replicas (DDP,
 *    HSDP) have no all-reduce of the norm: a fault closes the gate of its own replica. The host of that rank reads the fault in the
 *    next backward and stops the run on all ranks.
 * 3. `optimizer.step()` passes the gate to the kernels of updates. The next backward, which changes gradients, drops it.
 * 4. If no norm was taken, `step()` takes one only for the gate. It does so where the host learns of faults late; on other devices a
 *    fault was thrown when its op returned.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { Buffer } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { float32, int64 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import { zeros } from "../tensor/create.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { parameterList } from "../tensor/parameter_list.ts";
import { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";
import type { GradScaler } from "./grad_scaler.ts";
import { type NormType, requireNormType, sumOfPowers } from "./norm.ts";
import { requireReduced } from "./reduced.ts";

/** The purpose of a norm. */
interface NormPurpose {
  readonly normType: NormType;
  readonly maxNorm: number;
  /**
   * The effect of a norm that is not finite. `keep`: none, it is only returned; `fault`: an error, and the gate closes; `skip`: the
   * gate closes.
   */
  readonly ifNonfinite: "keep" | "fault" | "skip";
  /** Address of the factor that unscales gradients and clips them to `maxNorm`, which is written. */
  readonly factor?: DevicePtr;
  /** Addresses of the scale of the gradients, and of the word that is set if they overflowed. */
  readonly scaling?: { readonly scale: DevicePtr; readonly overflow: DevicePtr } | undefined;
  /** Parameters whose gradients count. @default all */
  readonly counted?: readonly Parameter[];
}

/** The purpose of a norm that is taken only to write the gate. */
const FAULTS_ONLY: NormPurpose = { normType: 2, maxNorm: Infinity, ifNonfinite: "keep", counted: [] };

function deviceOf([first]: readonly Parameter[]): Device {
  if (first === undefined) throw new ArgumentError("Cannot take the norm of the gradients of no parameters");
  return first.device;
}

/** Writes the norm of all gradients, and the gate. */
function takeNorm(parameters: readonly Parameter[], purpose: NormPurpose): Tensor {
  const { normType, maxNorm, ifNonfinite, factor, scaling, counted = parameters } = purpose;
  const device = deviceOf(parameters);
  const sum = Buffer.allocate(device, CONSTANTS.ACCUMULATOR_WORDS * int64.byteLength, "gradient norm");
  try {
    sumOfPowers(parameters, counted, normType, sum);
    const norm = zeros(device, []);
    const gate = device.status.makeGate(parameters);
    const power = normType === Infinity ? 1 : normType; // the largest magnitude takes no root
    const places = { norm: norm.ptr, factor, gate, accumulator: sum.ptr, ...scaling };
    device.kernels.clipFactor({ power, maxNorm, ifNonfinite, ...places });
    return norm;
  } finally {
    sum.release();
  }
}

/** Options of {@link gradNorm}. */
export interface NormOptions {
  /** The norm: 1, 2, 3, or Infinity for the largest magnitude. @default 2 */
  readonly normType?: NormType;
}

/**
 * The norm of all gradients together, over all ranks, as a float32 scalar. Every rank must call it.
 *
 * @param parameters a parameter without a gradient counts as zero
 * @returns the norm; NaN or Infinity if a gradient is not finite
 * @throws {ArgumentError} if there are none, nothing reduces some beside sharded ones, or there is no such norm
 */
export function gradNorm(parameters: Iterable<Parameter>, options: NormOptions = {}): Tensor {
  requireKnownKeys("take the norm of gradients", options, { normType: true });
  const { normType = 2 } = options;
  requireNormType(normType);
  const list = parameterList("take the norm", parameters);
  requireReduced(list, "take the norm of gradients");
  return takeNorm(list, { normType, maxNorm: Infinity, ifNonfinite: "keep" });
}

/** Options of {@link clipGradNorm}. */
export interface ClipOptions extends NormOptions {
  /** Makes a norm that is not finite an error; the optimizer changes nothing then. @default false */
  readonly errorIfNonfinite?: boolean;
  /** The scaler of the loss: gradients are unscaled first, and `scaler.step` skips the step if the norm is not finite. */
  readonly scaler?: GradScaler | undefined;
}

/**
 * Scales all gradients so that their norm is at most `maxNorm` (PyTorch's `clip_grad_norm_`). Every rank must call it.
 *
 * @returns the norm before clipping, a float32 scalar
 * @throws {ArgumentError} if `maxNorm` is not positive, there are no parameters, nothing reduces some beside sharded ones, there is
 * no such norm, or the scaler has unscaled their gradients already
 * @throws {NonFiniteError} if the norm had to be finite and is not; where the host learns of faults late, when a value is read
 */
export function clipGradNorm(parameters: Iterable<Parameter>, maxNorm: number, options: ClipOptions = {}): Tensor {
  requireKnownKeys("clip gradients", options, { normType: true, errorIfNonfinite: true, scaler: true });
  const { normType = 2, errorIfNonfinite = false, scaler } = options;
  requireSwitch("clip gradients", "errorIfNonfinite", errorIfNonfinite);
  if (!(isWithin(maxNorm, 0) && maxNorm > 0)) {
    throw new ArgumentError(`Cannot clip to norm ${valueText(maxNorm)}: it must be a positive number`);
  }
  requireNormType(normType);
  if (scaler !== undefined && errorIfNonfinite) {
    throw new ArgumentError(
      "Cannot clip gradients: scaler and errorIfNonfinite exclude each other, as a scaler skips a step with non-finite gradients. Give one",
    );
  }
  const list = parameterList("clip gradients", parameters);
  requireReduced(list, "clip gradients");
  const device = deviceOf(list);
  const { status } = device;
  using factor = Tensor.empty(device, [], float32, "clip factor");
  const factors = new Map([[device, factor]]);
  const ifNonfinite = scaler !== undefined ? "skip" : errorIfNonfinite ? "fault" : "keep";
  let norm: Tensor | undefined;
  try {
    const scaling = scaler?.unscaling(list);
    norm = takeNorm(list, { normType, maxNorm, ifNonfinite, factor: factor.ptr, scaling });
    if (!status.isLate) status.check();
    // All memory is allocated before the first gradient changes, so that a call that fails may be made again.
    const grads = list.flatMap(({ grad }) => grad ?? []);
    for (const { device: own } of grads) if (!factors.has(own)) factors.set(own, copyOf(factor, own));
    for (const { device: own, dtype, numel: n, ptr } of grads) {
      own.kernels.scaleBy({ dtype, n, dst: ptr, src: ptr, factor: (factors.get(own) ?? factor).ptr });
    }
    scaler?.noteUnscaled(list);
    return norm;
  } catch (error) {
    norm?.dispose();
    throw error;
  } finally {
    for (const copy of factors.values()) copy.dispose();
  }
}

/** A copy of a tensor on `device`, in no scope. */
function copyOf(tensor: Tensor, device: Device): Tensor {
  const copy = Tensor.empty(device, tensor.shape, tensor.dtype, tensor.buffer.owner);
  copyAcross(copy, tensor, tensor.numel * tensor.dtype.byteLength);
  return copy;
}

/**
 * The gate of an update: see Note [Gate].
 *
 * @returns the gate's address; undefined if there is none; `closed` if the gate closed for these parameters, and a later norm of other
 * parameters has overwritten it: then the host skips the update
 */
export function gateOf(parameters: readonly Parameter[]): DevicePtr | "closed" | undefined {
  const { status } = deviceOf(parameters);
  const gate = status.gateOf(parameters);
  if (gate !== undefined || !status.isLate) return gate;
  using _norm = takeNorm(parameters, FAULTS_ONLY);
  return status.gateOf(parameters);
}
