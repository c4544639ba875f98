/**
 * Records, which the kernels of an update read: a record for each parameter, with its place in the flat shard and the settings of this
 * step, laid out as `wasm/src/optimizer.rs` says. The records of all buckets on a device are copied to it at once.
 *
 * @module
 */
import { at } from "../at.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { copyAcross } from "../device/offload.ts";
import { int32 } from "../dtype.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { AVERAGE } from "./averages.ts";
import type { OptimizerSettings, ParamGroup } from "./groups.ts";
import type { RecordSettings } from "./rule.ts";
import type { StateBucket } from "./states.ts";

const { RECORD_BYTES } = CONSTANTS;

/** The record of one parameter. */
interface UpdateRecord {
  /** The parameter's first element in its flat shard. */
  readonly begin: number;
  /** The element after its last one in its flat shard. */
  readonly end: number;
  /** Its first element in the states. */
  readonly state: number;
  /** True if the parameter is updated; the kernels skip the others. */
  readonly isActive: boolean;
  /** The learning rate, the weight decay, and three numbers that depend on the optimizer. */
  readonly settings: RecordSettings;
}

/** A bucket in a step. */
export interface UpdatedBucket<S extends OptimizerSettings> {
  readonly bucket: StateBucket<S>;
  /** Address of its first record; undefined if none of its parameters is updated, and only their averages are. */
  readonly records: DevicePtr | undefined;
}

/** The records of a device's buckets, in its memory. */
export interface RecordTable<S extends OptimizerSettings> {
  readonly device: Device;
  /** The buckets with a parameter to update, and those with averages. */
  readonly buckets: readonly UpdatedBucket<S>[];
  /** Address of the gate on this device; undefined where there is none. See Note [Gate]. */
  readonly gate: DevicePtr | undefined;
}

/** Gives the present learning rate of a group. */
export interface PresentRates<S extends OptimizerSettings> {
  /** The learning rate in the next step. */
  learningRateOf(group: ParamGroup<S>): number;
}

/** The memory of an optimizer's records, by device. */
export class UpdateRecords<S extends OptimizerSettings> {
  readonly #gateDevice: Device;
  /** Memory for the records of the buckets on a device, and for a copy of the gate where that lies on another device. */
  readonly #buffers = new Map<Device, Buffer>();
  /** Disposed when the records are freed that captured updates read. */
  readonly #captured = new Map<Device, Disposable>();

  /**
   * Allocates nothing; {@link write} does.
   *
   * @param gateDevice the device that gates lie on
   */
  constructor(gateDevice: Device) {
    this.#gateDevice = gateDevice;
  }

  /**
   * Writes the records of buckets, and copies the gate to devices that it does not lie on. The memory for all devices is allocated
   * here, before the first update, so that a step that runs out of memory changes nothing. While the update is captured, the
   * settings are written before each launch, for the parameters that have a gradient now.
   */
  write(
    buckets: readonly StateBucket<S>[],
    gate: DevicePtr | undefined,
    rates: PresentRates<S>,
  ): readonly RecordTable<S>[] {
    return Array.from(
      Map.groupBy(buckets, ({ flatShard }) => flatShard.device),
      ([device, own]) => this.#writeTable(device, own, gate, rates),
    );
  }

  /** Frees the records. */
  free(): void {
    for (const buffer of this.#buffers.values()) buffer.release();
    this.#buffers.clear();
    for (const captured of this.#captured.values()) captured[Symbol.dispose]();
    this.#captured.clear();
  }

  #writeTable(
    device: Device,
    buckets: readonly StateBucket<S>[],
    gate: DevicePtr | undefined,
    rates: PresentRates<S>,
  ): RecordTable<S> {
    const active = buckets.flatMap(({ members }) => members.map(isActive));
    const end = active.length * RECORD_BYTES;
    const behind = device === this.#gateDevice ? 0 : int32.byteLength;
    const { ptr } = this.#roomFor(end + behind, device);
    const write = (): void => device.copyIn(ptr, bytesOf(buckets, active, rates, end + behind));
    const captured = device.traits.hostWork.perLaunch(write);
    if (captured !== undefined) this.#captured.set(device, captured);
    let next = 0;
    const placed: UpdatedBucket<S>[] = [];
    for (const bucket of buckets) {
      const first = next;
      next += bucket.members.length;
      const firstActive = active.indexOf(true, first);
      const isUpdated = firstActive >= 0 && firstActive < next;
      if (!isUpdated && !bucket.states.has(AVERAGE)) continue;
      placed.push({ bucket, records: isUpdated ? devicePtr(ptr + first * RECORD_BYTES) : undefined });
    }
    if (gate === undefined || device === this.#gateDevice) return { device, buckets: placed, gate };
    const copy = devicePtr(ptr + end);
    copyAcross({ device, ptr: copy }, { device: this.#gateDevice, ptr: gate }, int32.byteLength);
    return { device, buckets: placed, gate: copy };
  }

  #roomFor(byteLength: number, device: Device): Buffer {
    const before = this.#buffers.get(device);
    if (before?.byteLength === byteLength) return before;
    // If the allocation fails, the next step must not find the released buffer.
    this.#buffers.delete(device);
    before?.release();
    const buffer = Buffer.allocate(device, byteLength, "optimizer records", "optimizer");
    this.#buffers.set(device, buffer);
    return buffer;
  }
}

/** The records of the buckets' parameters, in `byteLength` bytes. */
function bytesOf<S extends OptimizerSettings>(
  buckets: readonly StateBucket<S>[],
  active: readonly boolean[],
  rates: PresentRates<S>,
  byteLength: number,
): Uint8Array<ArrayBuffer> {
  const table = new DataView(new ArrayBuffer(byteLength));
  let [rateGroup, rate]: [ParamGroup<S> | undefined, number] = [undefined, NaN];
  let i = 0;
  for (const { rule, members } of buckets) {
    for (const { parameter, group, offset: state } of members) {
      const { offset: begin, numel } = parameter.storage.shard;
      // Parameters of a group follow each other, and have the same rate.
      if (group !== rateGroup) [rateGroup, rate] = [group, rates.learningRateOf(group)];
      const settings = rule.record(group, rate, parameter);
      writeRecord(table, i, { begin, end: begin + numel, state, isActive: active[i] === true, settings });
      i++;
    }
  }
  return new Uint8Array(table.buffer);
}

/** The parameter has a gradient and is trained, so that an update changes it. */
export function isActive({ parameter }: { readonly parameter: Parameter }): boolean {
  return parameter.requiresGrad && parameter.grad !== undefined;
}

/** Writes the record of a table's parameter `index`. */
function writeRecord(table: DataView, index: number, record: UpdateRecord): void {
  const { begin, end, state, isActive, settings } = record;
  const byteOffset = index * RECORD_BYTES;
  setUint64(table, byteOffset, begin);
  setUint64(table, byteOffset + 8, end);
  setUint64(table, byteOffset + 16, state);
  table.setUint32(byteOffset + 24, Number(isActive), true);
  for (let i = 0; i < settings.length; i++) table.setFloat64(byteOffset + 32 + 8 * i, at(settings, i, "setting"), true);
}

/** Writes an integer below 2^53 as 64 bits. `setUint32` keeps the low 32 bits of a larger number. */
function setUint64(view: DataView, byteOffset: number, value: number): void {
  view.setUint32(byteOffset, value, true);
  view.setUint32(byteOffset + 4, Math.floor(value / 2 ** 32), true);
}
