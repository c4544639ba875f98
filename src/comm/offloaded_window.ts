/**
 * A window whose part lies in host memory. Each gather first copies the part to the device, then all-gathers the copies.
 * Peers never read the part itself, so it may be written at any time between gathers.
 *
 * @module
 */
import { type BlockSource, Buffer } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import type { Phase } from "./call.ts";
import type { Work } from "./data_plane.ts";
import type { GatherWindow } from "./gather_window.ts";
import type { ProcessGroup } from "./process_group.ts";

/** A window in offloaded memory; the parts of all ranks have one length. */
export class OffloadedWindow implements GatherWindow {
  readonly byteLengths: readonly number[];
  readonly #group: ProcessGroup;
  readonly #device: Device;
  readonly #memory: Buffer;
  readonly #onDevice: BlockSource | undefined;

  /** @param name the unit, for messages */
  constructor(group: ProcessGroup, device: Device, byteLength: number, name: string) {
    this.byteLengths = new Array<number>(group.size).fill(byteLength);
    this.#group = group;
    this.#device = device;
    this.#onDevice = group.gatherMemory();
    this.#memory = Buffer.allocate(device.offload.device, byteLength, `${name} parameters`, "parameters");
  }

  /** This rank's part, in host memory. */
  get pointer(): DevicePtr {
    return this.#memory.ptr;
  }

  beginWrite(): void {}

  endWrite(): void {}

  gather(dst: DevicePtr, _offsets: readonly number[], unit: string, phase: Phase): Work {
    const { byteLength } = this.#memory;
    const own = Buffer.empty(this.#device, byteLength, `${unit} on its way`, "gathered", this.#onDevice);
    own.allocateMemory();
    try {
      const from = { device: this.#memory.device, ptr: this.pointer };
      copyAcross({ device: this.#device, ptr: own.ptr }, from, byteLength);
      return this.#group.allGather(dst, own.ptr, byteLength, unit, phase);
    } finally {
      own.release();
    }
  }

  dispose(): void {
    if (!this.#memory.disposed) this.#memory.release();
  }
}
