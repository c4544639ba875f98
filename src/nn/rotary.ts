/**
 * Rotary tables: cosines and sines of every position, made on the device when a longer sequence first needs them.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import { Tensor } from "../tensor/tensor.ts";

/** Rescaling of rotary frequencies, by transformers' `rope_type`. */
export type RopeScaling =
  | { readonly type: "default" }
  | { readonly type: "linear"; readonly factor: number }
  | {
    readonly type: "llama3";
    readonly factor: number;
    readonly lowFreqFactor: number;
    readonly highFreqFactor: number;
    readonly originalMaxPositions: number;
  };

/** What decides the angles. */
export interface RotaryOptions {
  /** Elements of a head that are turned: even. */
  readonly dim: number;
  /** Base of the frequencies. */
  readonly theta: number;
  readonly scaling: RopeScaling;
  /** Most positions. */
  readonly maxPositions: number;
}

/**
 * Inverse frequencies [dim / 2], rescaled (transformers `modeling_rope_utils.py`). Each step is rounded to float32 as there: a
 * position in the thousands multiplies what a frequency is off by.
 */
export function inverseFrequencies({ math }: Device, options: RotaryOptions): Float32Array<ArrayBuffer> {
  const { dim, theta, scaling } = options;
  const f = Math.fround;
  return Float32Array.from({ length: dim / 2 }, (_, i) => {
    const frequency = f(1 / f(math.pow(theta, f(2 * i / dim))));
    if (scaling.type === "default") return frequency;
    if (scaling.type === "linear") return frequency / scaling.factor;
    const { factor, lowFreqFactor, highFreqFactor, originalMaxPositions } = scaling;
    const wavelength = f(f(1 / frequency) * f(2 * Math.PI));
    if (wavelength > originalMaxPositions / lowFreqFactor) return frequency / factor;
    if (wavelength < originalMaxPositions / highFreqFactor) return frequency;
    const turns = f(f(1 / wavelength) * originalMaxPositions);
    const smooth = f(f(turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor));
    return f(f(f(1 - smooth) * frequency) / factor) + f(smooth * frequency);
  });
}

/** Cosines and sines, float32 [positions, dim / 2]. */
export type CosSin = readonly [cos: Tensor, sin: Tensor];

/** The tables of one model. */
export class RotaryTables {
  readonly #device: Device;
  readonly #options: RotaryOptions;
  #tables: readonly [cos: BufferTensor, sin: BufferTensor] | undefined;
  #positions = 0;

  constructor(device: Device, options: RotaryOptions) {
    this.#device = device;
    this.#options = options;
  }

  /** Rows of `count` positions from `start` on. */
  rows(start: number, count: number): CosSin {
    const [cos, sin] = this.upTo(start + count);
    return [cos.narrow(0, start, count), sin.narrow(0, start, count)];
  }

  /** Tables of at least `positions` positions; buffers, so that no precision casts them. */
  upTo(positions: number): CosSin {
    if (this.#tables !== undefined && this.#positions >= positions) return this.#tables;
    for (const table of this.#tables ?? []) table.dispose();
    // Room to grow: a text that is generated token by token must not make new tables for each.
    const rows = Math.max(positions, Math.min(this.#options.maxPositions, 2 ** Math.ceil(Math.log2(positions))));
    const half = this.#options.dim / 2;
    const table = (): BufferTensor => {
      const buffer = new BufferTensor(this.#device, [rows, half], { persistent: false, kind: "activations" });
      buffer.rename("rotary tables");
      buffer.materialize();
      return buffer;
    };
    using invFreq = Tensor.empty(this.#device, [half], float32, "rotary frequencies");
    invFreq.copyFromHost(inverseFrequencies(this.#device, this.#options));
    const tables = [table(), table()] as const;
    const [cos, sin] = [tables[0].ptr, tables[1].ptr];
    this.#device.kernels.ropeTable({ positions: rows, half, scale: 1, cos, sin, invFreq: invFreq.ptr });
    [this.#tables, this.#positions] = [tables, rows];
    return tables;
  }
}
