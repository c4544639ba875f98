/**
 * Dynamic loss scaling for float16 (PyTorch's `torch.amp.GradScaler`, `aten/src/ATen/native/cuda/AmpKernels.cu`). The loss is
 * multiplied by a scale before the backward, so that small gradients are not zero in float16, and the gradients are divided by it
 * before they are used. Scale and overflow stay on the device, so the host does not wait for it. The gate makes all ranks skip a step
 * whose gradients overflowed on any of them: see Note [Gate].
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr, requireDevice } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { holds, isWithin } from "../held.ts";
import { denseLayout } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";
import { clipGradNorm } from "./clip.ts";
import { Optimizer } from "./optimizer.ts";

/** Settings of a {@link GradScaler}; the defaults are PyTorch's. */
export interface GradScalerSettings {
  /** The factor on the scale after `growthInterval` steps without an overflow: 2 */
  readonly growthFactor: number;
  /** The factor on the scale after an overflow: 0.5 */
  readonly backoffFactor: number;
  /** Steps without an overflow after which the scale grows: 2000 */
  readonly growthInterval: number;
}

/** Options of a {@link GradScaler}. */
export interface GradScalerOptions extends Partial<GradScalerSettings> {
  /** The first scale. @default 65536 */
  readonly initScale?: number;
}

/** The state of a scaler in a checkpoint. */
export interface GradScalerState extends GradScalerSettings {
  /** The factor on losses. */
  readonly scale: number;
  /** Steps without an overflow since the scale was last changed. */
  readonly growthTracker: number;
}

/** Byte offsets of the scaler's values in device memory; a copy of all follows, for {@link GradScaler.rewind}. */
const PLACES = {
  scale: 0,
  growthTracker: float32.byteLength,
  overflow: float32.byteLength + int32.byteLength,
} as const;
const BYTES = PLACES.overflow + int32.byteLength;

/**
 * Scales losses, unscales gradients, and skips steps whose gradients overflowed, on all ranks where they did on one.
 *
 * @example
 * ```ts
 * import { AdamW, clipGradNorm, GradScaler, tensor } from "fullyshard";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * const device = await openDevice("cpu");
 * const model = new Linear(device, 2, 1);
 * initializeParameters(model, 0);
 * const optimizer = new AdamW(model.parameters());
 * using scaler = new GradScaler(device);
 * const loss = model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum();
 * scaler.scale(loss).backward();
 * clipGradNorm(model.parameters(), 1, { scaler });
 * scaler.step(optimizer);
 * scaler.update();
 * if (scaler.getScale() !== 65536) throw new Error("changed");
 * ```
 */
export class GradScaler implements Disposable {
  readonly #device: Device;
  readonly #memory: Buffer;
  /** Parameters whose gradients were unscaled since the last update. */
  readonly #unscaled = new Set<Parameter>();
  /** Optimizers that have stepped since the last update. */
  readonly #stepped = new Set<Optimizer>();
  #settings: GradScalerSettings;

  /**
   * Takes 24 bytes of the device, until it is disposed.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(device: Device, options: GradScalerOptions = {}) {
    requireDevice("make a GradScaler", device);
    const known = { initScale: true, growthFactor: true, backoffFactor: true, growthInterval: true } as const;
    requireKnownKeys("make a GradScaler", options, known);
    const { initScale = 65536, growthFactor = 2, backoffFactor = 0.5, growthInterval = 2000 } = options;
    this.#settings = { growthFactor, backoffFactor, growthInterval };
    this.#device = device;
    requireState({ ...this.#settings, scale: initScale, growthTracker: 0 });
    this.#memory = Buffer.allocate(device, 2 * BYTES, "loss scale", "optimizer");
    this.#write(initScale, 0);
  }

  /** The loss times the scale: what to call `backward()` on. */
  scale(loss: Tensor): Tensor {
    this.#memory.retain();
    using scale = new Tensor(this.#memory, denseLayout([]), float32);
    return loss.mul(scale);
  }

  /**
   * Divides the gradients of an optimizer's parameters by the scale, for a program that uses them before {@link step} or
   * `clipGradNorm` would. Every rank must call it.
   *
   * @throws {ArgumentError} if the gradients were unscaled since the last update
   */
  unscale(optimizer: Optimizer): void {
    using _norm = clipGradNorm(parametersOf(optimizer), Infinity, { scaler: this });
  }

  /**
   * Unscales gradients that are still scaled, and takes the optimizer's step. If gradients overflowed on a rank, the step changes
   * nothing on any rank. Schedules count skipped steps, too, as the host does not wait for the outcome. Every rank must call it.
   *
   * @throws {ArgumentError} if the optimizer has stepped since the last update, or only some of its gradients were unscaled
   */
  step(optimizer: Optimizer): void {
    if (!(optimizer instanceof Optimizer)) {
      throw new ArgumentError(
        `Cannot step with ${valueText(optimizer)}: expected an optimizer, as in scaler.step(optimizer)`,
      );
    }
    if (this.#stepped.has(optimizer)) {
      throw new ArgumentError(
        "Cannot step: the optimizer has stepped since the last update(); call update() after each",
      );
    }
    const parameters = parametersOf(optimizer);
    if (!parameters.some((parameter) => this.#unscaled.has(parameter))) this.unscale(optimizer);
    const scaled = parameters.find((parameter) => parameter.grad !== undefined && !this.#unscaled.has(parameter));
    if (scaled !== undefined) {
      throw new ArgumentError(
        `Cannot step: the gradient of '${scaled.fqn}' is scaled, and others of its optimizer are not; give clipGradNorm all of them with ` +
          "the scaler, or call unscale(optimizer) and clip without it",
      );
    }
    optimizer.step();
    this.#stepped.add(optimizer);
  }

  /**
   * Makes the scale smaller after an overflow, and larger after `growthInterval` steps without. Call it once a step, after all
   * optimizers have stepped.
   *
   * @throws {ArgumentError} if no gradients were unscaled since the last update
   */
  update(): void {
    if (this.#unscaled.size === 0) {
      throw new ArgumentError(
        "Cannot update the loss scale: no gradients were unscaled since; call step(optimizer) first",
      );
    }
    this.#unscaled.clear();
    this.#stepped.clear();
    const { growthFactor: growth, backoffFactor: backoff, growthInterval: interval } = this.#settings;
    const [scale, progress, overflow] = [this.#at("scale"), this.#at("growthTracker"), this.#at("overflow")];
    this.#device.kernels.updateScale({ growth, backoff, interval, scale, progress, overflow });
    this.#memory.version++; // a backward of a graph that was recorded with the old scale is refused
  }

  /** The scale. Waits for the device. */
  getScale(): number {
    return this.state().scale;
  }

  /** The state for a checkpoint, as plain data. Waits for the device. */
  state(): GradScalerState {
    const bytes = new Uint8Array(BYTES);
    this.#device.synchronize();
    this.#device.copyOut(bytes, this.#memory.ptr);
    const view = new DataView(bytes.buffer);
    const [scale, growthTracker] = [view.getFloat32(PLACES.scale, true), view.getInt32(PLACES.growthTracker, true)];
    return { ...this.#settings, scale, growthTracker };
  }

  /** Takes a state that {@link state} gave. @throws {ArgumentError} if a number in it is out of range */
  restore(state: GradScalerState): void {
    requireState(state);
    const { scale, growthTracker, growthFactor, backoffFactor, growthInterval } = state;
    this.#settings = { growthFactor, backoffFactor, growthInterval };
    this.#write(scale, growthTracker);
  }

  /** Frees the memory. */
  [Symbol.dispose](): void {
    this.#memory.release();
  }

  /**
   * The addresses of the scale, by which gradients are to be divided, and of the word that is set if they overflowed.
   *
   * @throws {ArgumentError} if the gradients were unscaled since the last update
   * @internal
   */
  unscaling(parameters: readonly Parameter[]): { readonly scale: DevicePtr; readonly overflow: DevicePtr } {
    const again = parameters.find((parameter) => this.#unscaled.has(parameter));
    if (again !== undefined) {
      throw new ArgumentError(
        `Cannot unscale the gradient of '${again.fqn}': it was since the last update(); clip with the scaler once a step, or ` +
          "without it after unscale()",
      );
    }
    return { scale: this.#at("scale"), overflow: this.#at("overflow") };
  }

  /**
   * The gradients of some parameters have been unscaled, after {@link unscaling}.
   *
   * @internal
   */
  noteUnscaled(parameters: readonly Parameter[]): void {
    for (const parameter of parameters) this.#unscaled.add(parameter);
  }

  /**
   * Keeps the present state for {@link rewind}. No gradients may have been unscaled since the last update.
   *
   * @internal
   */
  remember(): void {
    this.#device.copy(devicePtr(this.#memory.ptr + BYTES), this.#memory.ptr, BYTES);
  }

  /**
   * Restores the state that {@link remember} kept: the step since then has failed.
   *
   * @internal
   */
  rewind(): void {
    this.#unscaled.clear();
    this.#stepped.clear();
    this.#device.copy(this.#memory.ptr, devicePtr(this.#memory.ptr + BYTES), BYTES);
    this.#memory.version++;
  }

  #at(place: keyof typeof PLACES): DevicePtr {
    return devicePtr(this.#memory.ptr + PLACES[place]);
  }

  #write(scale: number, growthTracker: number): void {
    const view = new DataView(new ArrayBuffer(BYTES));
    view.setFloat32(PLACES.scale, scale, true);
    view.setInt32(PLACES.growthTracker, growthTracker, true);
    this.#device.copyIn(this.#memory.ptr, new Uint8Array(view.buffer));
    this.#memory.version++;
  }
}

function parametersOf({ groups }: Optimizer): readonly Parameter[] {
  return groups.flatMap(({ parameters }) => parameters);
}

function requireState({ scale, growthTracker, growthFactor, backoffFactor, growthInterval }: GradScalerState): void {
  const counts = [growthInterval, growthTracker + 1];
  if (
    [scale, growthFactor, backoffFactor].every((value) => isWithin(value, 0)) &&
    scale > 0 && Number.isFinite(scale) && growthFactor > 1 && backoffFactor > 0 && backoffFactor < 1 &&
    counts.every((count) => holds(int32, count) && count > 0)
  ) return;
  const [by, growth, interval, backoff] = [scale, growthFactor, growthInterval, backoffFactor].map(valueText);
  throw new ArgumentError(
    `Cannot scale losses by ${by}, growing by ${growth} after ${interval} steps of which ${growthTracker} are done, ` +
      `backing off by ${backoff}: the scale must be positive, growth above 1, backoff between 0 and 1, steps whole numbers`,
  );
}
