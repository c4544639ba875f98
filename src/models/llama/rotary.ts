/**
 * Llama's rotary tables: cosines and sines of every position, made on the device when a longer sequence first needs them.
 *
 * @module
 */
import { Buffer } from "../../device/buffer.ts";
import type { Device } from "../../device/device.ts";
import { float32 } from "../../dtype.ts";
import { denseLayout } from "../../shape.ts";
import { Tensor } from "../../tensor/tensor.ts";
import type { LlamaConfig } from "./config.ts";

/**
 * Inverse frequencies [headDim / 2], rescaled as the config says (transformers `modeling_rope_utils.py`). Each step is rounded
 * to float32 as there: a position in the thousands multiplies what a frequency is off by.
 */
export function inverseFrequencies(device: Device, config: LlamaConfig): Float32Array<ArrayBuffer> {
  const { headDim, ropeTheta, ropeScaling: scaling } = config;
  const f = Math.fround;
  return Float32Array.from({ length: headDim / 2 }, (_, i) => {
    const frequency = f(1 / f(device.math.pow(ropeTheta, f(2 * i / headDim))));
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

/** The tables of one model. */
export class RotaryTables {
  readonly #device: Device;
  readonly #config: LlamaConfig;
  #tables: readonly [cos: Tensor, sin: Tensor] | undefined;

  constructor(device: Device, config: LlamaConfig) {
    this.#device = device;
    this.#config = config;
  }

  /** Tables float32 [positions, headDim / 2] of at least `positions` positions. */
  upTo(positions: number): readonly [cos: Tensor, sin: Tensor] {
    const made = this.#tables;
    if (made !== undefined && (made[0].shape[0] ?? 0) >= positions) return made;
    for (const table of made ?? []) table.dispose();
    // Room to grow: a text that is generated token by token must not make new tables for each.
    const rows = Math.max(positions, Math.min(this.#config.maxPositions, 2 ** Math.ceil(Math.log2(positions))));
    const half = this.#config.headDim / 2;
    const frequencies = inverseFrequencies(this.#device, this.#config);
    using invFreq = this.#table([half]);
    invFreq.copyFromHost(frequencies);
    const tables = [this.#table([rows, half]), this.#table([rows, half])] as const;
    const [cos, sin] = [tables[0].ptr, tables[1].ptr];
    this.#device.kernels.ropeTable({ positions: rows, half, scale: 1, cos, sin, invFreq: invFreq.ptr });
    this.#tables = tables;
    return tables;
  }

  /** A tensor in no scope. */
  #table(shape: readonly number[]): Tensor {
    const bytes = shape.reduce((n, size) => n * size, float32.byteLength);
    return new Tensor(Buffer.allocate(this.#device, bytes, "rotary tables"), denseLayout(shape), float32);
  }
}
