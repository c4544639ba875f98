/**
 * One flat segment at work: this rank's run of master weights, the window that peers gather it from, the gathered whole, the
 * whole's gradient, and the run's reduced gradient. Parameters are views; nothing is copied in or out.
 *
 * Note [What a segment owns]
 * - run: float32 master weights, always. They lie in the window itself when the compute dtype is float32; else the window
 *   holds the run cast to it, refreshed whenever the run is written, so that a gather moves the smaller type.
 * - whole: `world` runs in the compute dtype, between unshard and reshard.
 * - whole gradient: `world` runs in the reduce dtype, from the first contribution of a backward to its reduction.
 * - run gradient: float32, from the first reduction until it is cleared.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Phase } from "../comm/call.ts";
import type { GatherWindow } from "../comm/gather_window.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr, NO_PTR } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import { denseLayout } from "../shape.ts";
import type { Parameter, ParameterRun } from "../tensor/parameter.ts";
import { Tensor } from "../tensor/tensor.ts";
import { planSegment, type SegmentPlan, shareOf } from "./layout.ts";
import { ShardedStorage } from "./param.ts";
import type { FsdpUnit } from "./unit.ts";

/** Bytes that every parameter starts on a multiple of. */
const ALIGNMENT_BYTES = 256;

/** A flat segment of one unit. */
export class FlatSegment implements ParameterRun {
  readonly device: Device;
  /** The unit it belongs to. */
  readonly unit: FsdpUnit;
  readonly plan: SegmentPlan;
  readonly storages: readonly ShardedStorage[];
  readonly #suffix: string;
  readonly #group: ProcessGroup;
  readonly #paramDtype: DType;
  readonly #reduceDtype: DType;
  readonly #window: GatherWindow;
  readonly #master: Buffer;
  readonly #whole: Buffer;
  #wholeGrad: Buffer | undefined;
  #runGrad: Buffer | undefined;

  /**
   * @param unit what it is part of
   * @param suffix what the unit's name is followed by in the segment's
   */
  constructor(unit: FsdpUnit, suffix: string, parameters: readonly Parameter[]) {
    const first = parameters[0];
    if (first === undefined) throw new InternalError("a segment without parameters");
    const { group, paramDtype, reduceDtype } = unit.policy;
    this.unit = unit;
    this.#suffix = suffix;
    this.device = first.device;
    this.#group = group;
    this.#paramDtype = paramDtype;
    this.#reduceDtype = reduceDtype;
    const narrowest = Math.min(float32.byteLength, paramDtype.byteLength, reduceDtype.byteLength);
    this.plan = planSegment(parameters.map(({ shape }) => shape), group.size, ALIGNMENT_BYTES / narrowest);
    const { runLength, world } = this.plan;
    const bytes = runLength * paramDtype.byteLength;
    this.#window = group.openWindow(new Array<number>(world).fill(bytes), this.#name);
    this.#master = paramDtype === float32
      ? Buffer.borrow(this.device, this.#window.pointer, bytes, `${this.#name} parameters`)
      : Buffer.allocate(this.device, runLength * float32.byteLength, `${this.#name} master weights`);
    this.#whole = Buffer.empty(this.device, world * bytes, `${this.#name} gathered parameters`);
    this.storages = parameters.map((parameter, i) => this.#adopt(parameter, this.plan.offsets[i] ?? 0));
  }

  /** The unit's name, as it is now. */
  get #name(): string {
    return `${this.unit.name}${this.#suffix}`;
  }

  get length(): number {
    return this.plan.runLength;
  }

  get param(): DevicePtr {
    return this.#master.ptr;
  }

  get grad(): DevicePtr {
    return this.#runGrad?.ptr ?? NO_PTR;
  }

  beginWrite(): void {
    this.unit.reshard(); // a gathered copy would grow stale
    this.#window.beginWrite(this.#name);
  }

  endWrite(): void {
    if (this.#paramDtype !== float32) {
      this.device.kernels.cast(this.#paramDtype, float32, this.#window.pointer, this.#master.ptr, this.length);
    }
    this.#window.endWrite();
  }

  /** Bytes of the gathered whole. */
  get wholeBytes(): number {
    return this.#whole.byteLength;
  }

  /** Bytes of the whole gradient. */
  get wholeGradBytes(): number {
    return this.plan.world * this.length * this.#reduceDtype.byteLength;
  }

  /** Gathers the whole. */
  unshard(phase: Phase): void {
    this.#whole.attach();
    const bytes = this.length * this.#paramDtype.byteLength;
    try {
      this.#window.gather(this.#whole.ptr, this.#runStarts(bytes), this.#name, phase).wait();
    } catch (error) {
      this.#whole.detach();
      throw error;
    }
  }

  /** Frees the whole. */
  reshard(): void {
    this.#whole.detach();
  }

  /** Whether ops may write gradients to their places: those are no narrower than what is computed in. */
  get writesDirectly(): boolean {
    return this.#reduceDtype.byteLength >= this.#paramDtype.byteLength;
  }

  /** Whether gradients wait to be reduced. */
  get holdsWholeGradient(): boolean {
    return this.#wholeGrad !== undefined;
  }

  /** A handle on the place of one parameter's gradient in the whole gradient. */
  gradientPlace(parameter: Parameter, offset: number): Tensor {
    this.#wholeGrad ??= Buffer.allocate(this.device, this.wholeGradBytes, `${this.#name} gradients`);
    this.#wholeGrad.retain();
    return new Tensor(this.#wholeGrad, denseLayout(parameter.shape, offset), this.#reduceDtype);
  }

  /** Sums the whole gradient over ranks into the run's gradient, times `scale`. Parameters without one count as zero. */
  reduce(scale: number): void {
    if (!this.storages.some((storage) => storage.trainable)) return;
    for (const storage of this.storages) storage.fillMissing();
    if (this.#wholeGrad === undefined) throw new InternalError(`'${this.#name}' has no gradients to reduce`);
    const accumulate = this.#runGrad !== undefined;
    this.#runGrad ??= Buffer.allocate(this.device, this.length * float32.byteLength, `${this.#name} gradient shard`);
    this.#group.reduceScatter(
      {
        src: this.#wholeGrad.ptr,
        dtype: this.#reduceDtype,
        runs: Array.from({ length: this.plan.world }, (_, r) => ({ offset: r * this.length, length: this.length })),
        dst: this.#runGrad.ptr,
        dstDtype: float32,
        scale,
        accumulate,
      },
      this.#name,
      "backward",
    ).wait();
    for (const storage of this.storages) storage.dropWhole();
    this.#wholeGrad.release();
    this.#wholeGrad = undefined;
  }

  /** The run's gradient of one share, or undefined before the first reduction. */
  runGradient(runOffset: number, length: number): Tensor | undefined {
    if (this.#runGrad === undefined) return undefined;
    this.#runGrad.retain();
    return new Tensor(this.#runGrad, denseLayout([length], runOffset), float32);
  }

  /** Called when a storage has cleared its gradient: memory goes back with the last one; until then the next sum starts at zero. */
  settle({ runOffset, shard: { length } }: ShardedStorage): void {
    if (this.storages.some((storage) => storage.holdsGradient)) {
      if (this.#runGrad === undefined) return;
      const place = devicePtr(this.#runGrad.ptr + runOffset * float32.byteLength);
      this.device.kernels.fill(float32, place, length, 0);
      return;
    }
    this.#runGrad?.release();
    this.#runGrad = undefined;
    this.#wholeGrad?.release();
    this.#wholeGrad = undefined;
  }

  /** Frees everything; every rank must. */
  dispose(): void {
    for (const storage of this.storages) storage.clearGradient();
    this.#whole.detach();
    this.#master.release();
    this.#window.dispose();
  }

  #runStarts(bytes: number): number[] {
    return Array.from({ length: this.plan.world }, (_, rank) => rank * bytes);
  }

  #adopt(parameter: Parameter, offset: number): ShardedStorage {
    const share = shareOf(this.plan, offset, parameter.numel, this.#group.rank);
    const storage = new ShardedStorage(this, parameter, offset, share, this.#group);
    this.#whole.retain();
    parameter.shardInto(storage, this.#whole, offset, this.#paramDtype);
    return storage;
  }
}
