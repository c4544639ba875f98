/**
 * Records, which the kernels of an update read: a record for each parameter, with its place in the flat shard and the settings of this
 * step, laid out as `wasm/src/optimizer.rs` says. The records of all blocks on a device are copied to it at once.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { copyAcross } from "../device/offload.ts";
import { int32 } from "../dtype.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { OptimizerSettings, ParamGroup } from "./groups.ts";
import type { BlockMember, ParameterBlock } from "./states.ts";

const { RECORD_BYTES } = CONSTANTS;

/** The record of one parameter. */
interface UpdateRecord {
  /** The parameter's first element in its flat shard. */
  readonly begin: number;
  /** The element behind its last in its flat shard. */
  readonly end: number;
  /** Its first element in the states. */
  readonly state: number;
  /** The parameter is updated; else the kernels pass over it. */
  readonly isActive: boolean;
  /** The learning rate, the weight decay, and three numbers that depend on the optimizer. */
  readonly settings: readonly number[];
}

/** The records of a device's blocks, in its memory. */
export interface RecordTable<S extends OptimizerSettings> {
  readonly device: Device;
  /** The blocks with a parameter to update, each with the address of its first record. */
  readonly blocks: readonly { readonly block: ParameterBlock<S>; readonly records: DevicePtr }[];
  /** Address of the gate on this device; undefined where there is none. See Note [Gate]. */
  readonly gate: DevicePtr | undefined;
}

/** Records that a captured update reads. */
interface CapturedRecords<S extends OptimizerSettings> {
  readonly ptr: DevicePtr;
  readonly members: readonly BlockMember<S>[];
  readonly active: readonly boolean[];
}

/** Gives the present settings of a group, as its records hold them. */
export type SettingsOf<S extends OptimizerSettings> = (group: ParamGroup<S>) => readonly number[];

/** The memory of an optimizer's records, by device. */
export class UpdateRecords<S extends OptimizerSettings> {
  readonly #gateDevice: Device;
  /** Memory for the records of the blocks on a device, and for a copy of the gate where that lies on another device. */
  readonly #buffers = new Map<Device, Buffer>();
  readonly #captured = new Map<Device, CapturedRecords<S>>();

  /**
   * Allocates nothing; {@link write} does.
   *
   * @param gateDevice the device that gates lie on
   */
  constructor(gateDevice: Device) {
    this.#gateDevice = gateDevice;
  }

  /** A captured update reads these records. False after {@link free}. */
  get isCaptured(): boolean {
    return this.#captured.size > 0;
  }

  /**
   * Writes the records of blocks, and copies the gate to devices that it does not lie on. The memory for all devices is allocated
   * here, before the first update, so that a step that runs out of memory changes nothing.
   */
  write(
    blocks: readonly ParameterBlock<S>[],
    gate: DevicePtr | undefined,
    settingsOf: SettingsOf<S>,
  ): readonly RecordTable<S>[] {
    return Array.from(
      Map.groupBy(blocks, ({ flatShard }) => flatShard.device),
      ([device, own]) => this.#writeTable(device, own, gate, settingsOf),
    );
  }

  /** Writes the settings as they are now to the records of a captured update, of the parameters that had a gradient then. */
  rewrite(settingsOf: SettingsOf<S>): void {
    for (const [device, { ptr, members, active }] of this.#captured) {
      device.copyIn(ptr, bytesOf(members, active, settingsOf, 0));
    }
  }

  /** Frees the records. */
  free(): void {
    for (const buffer of this.#buffers.values()) buffer.release();
    this.#buffers.clear();
    this.#captured.clear();
  }

  #writeTable(
    device: Device,
    blocks: readonly ParameterBlock<S>[],
    gate: DevicePtr | undefined,
    settingsOf: SettingsOf<S>,
  ): RecordTable<S> {
    const members = blocks.flatMap((block) => block.members);
    const active = members.map(isActive);
    const end = members.length * RECORD_BYTES;
    const bytes = bytesOf(members, active, settingsOf, device === this.#gateDevice ? 0 : int32.byteLength);
    const { ptr } = this.#roomFor(bytes.byteLength, device);
    if (device.graphs?.isCapturing === true) this.#captured.set(device, { ptr, members, active });
    else device.copyIn(ptr, bytes);
    let next = 0;
    const placed: { readonly block: ParameterBlock<S>; readonly records: DevicePtr }[] = [];
    for (const block of blocks) {
      const behind = next + block.members.length;
      if (active.slice(next, behind).includes(true)) {
        placed.push({ block, records: devicePtr(ptr + next * RECORD_BYTES) });
      }
      next = behind;
    }
    if (gate === undefined || device === this.#gateDevice) return { device, blocks: placed, gate };
    const copy = devicePtr(ptr + end);
    copyAcross({ device, ptr: copy }, { device: this.#gateDevice, ptr: gate }, int32.byteLength);
    return { device, blocks: placed, gate: copy };
  }

  #roomFor(byteLength: number, device: Device): Buffer {
    const before = this.#buffers.get(device);
    if (before?.byteLength === byteLength) return before;
    // Where the allocation fails, the next step must not find the released buffer here.
    this.#buffers.delete(device);
    before?.release();
    const buffer = Buffer.allocate(device, byteLength, "optimizer records", "optimizer");
    this.#buffers.set(device, buffer);
    return buffer;
  }
}

/** The records of parameters, with `behind` bytes after the last. */
function bytesOf<S extends OptimizerSettings>(
  members: readonly BlockMember<S>[],
  active: readonly boolean[],
  settingsOf: SettingsOf<S>,
  behind: number,
): Uint8Array<ArrayBuffer> {
  const table = new DataView(new ArrayBuffer(members.length * RECORD_BYTES + behind));
  let [of, settings]: [ParamGroup<S> | undefined, readonly number[]] = [undefined, []];
  for (const [i, { parameter, group, state }] of members.entries()) {
    const { offset: begin, numel } = parameter.storage.shard;
    // Parameters of a group follow each other, and have the same settings.
    if (group !== of) [of, settings] = [group, settingsOf(group)];
    writeRecord(table, i, { begin, end: begin + numel, state, isActive: active[i] === true, settings });
  }
  return new Uint8Array(table.buffer);
}

/** The parameter has a gradient and is trained, so that an update changes it. */
function isActive({ parameter }: { readonly parameter: Parameter }): boolean {
  return parameter.requiresGrad && parameter.grad !== undefined;
}

/** Writes the record of a table's parameter `index`. */
function writeRecord(table: DataView, index: number, record: UpdateRecord): void {
  const { begin, end, state, isActive, settings } = record;
  const at = index * RECORD_BYTES;
  setUint64(table, at, begin);
  setUint64(table, at + 8, end);
  setUint64(table, at + 16, state);
  table.setUint32(at + 24, Number(isActive), true);
  settings.forEach((setting, i) => table.setFloat64(at + 32 + 8 * i, setting, true));
}

/** Writes an integer below 2^53 as 64 bits. `setUint32` keeps the low 32 bits of a larger number. */
function setUint64(view: DataView, at: number, value: number): void {
  view.setUint32(at, value, true);
  view.setUint32(at + 4, Math.floor(value / 2 ** 32), true);
}
