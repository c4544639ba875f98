/**
 * Numbers of positions, which a device is given once: a forward that copied them each time could not be captured.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { int32 } from "../dtype.ts";
import { Tensor } from "../tensor/tensor.ts";
import { PositionRows, rowsFor } from "./position_rows.ts";

/** The numbers from 0 on, as far as they have been asked for. */
export class PositionNumbers {
  readonly #device: Device;
  readonly #maxPositions: number;
  #made: PositionRows<readonly [Tensor]> | undefined;

  /** @param maxPositions up to which there is room to grow */
  constructor(device: Device, maxPositions: number) {
    this.#device = device;
    this.#maxPositions = maxPositions;
  }

  /** int32 [count]: `start`, `start + 1` and so on. */
  of(start: number, count: number): Tensor {
    const device = this.#device;
    let made = this.#made;
    if (made === undefined || made.rows < start + count) {
      this.#made = undefined; // if memory runs out, the next call makes new ones
      made?.[Symbol.dispose]();
      const rows = rowsFor(start + count, this.#maxPositions);
      const numbers = Tensor.empty(device, [rows], int32, "positions");
      numbers.copyFromHost(Int32Array.from({ length: rows }, (_, i) => i));
      made = new PositionRows(rows, [numbers]);
      this.#made = made;
    }
    const [numbers] = made.read(device);
    return numbers.narrow(0, start, count);
  }
}
