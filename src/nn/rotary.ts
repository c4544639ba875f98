/**
 * Rotary tables: cosines and sines of every position, made on the device when a longer sequence first needs them.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device, PortableMath } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { UnsupportedError } from "../errors.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { PositionRows, rowsFor } from "./position_rows.ts";
import { PositionNumbers } from "./positions.ts";

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
  }
  | {
    readonly type: "yarn";
    readonly factor: number;
    /** Factor on cosines and sines. @default follows from the other factors */
    readonly attentionFactor: number | undefined;
    readonly mscale: number | undefined;
    readonly mscaleAllDim: number | undefined;
    /** Turns within the original positions beyond which a frequency stays, and below which it is divided by the factor. */
    readonly betaFast: number;
    readonly betaSlow: number;
    /** True if the bounds of the dims where frequencies change are rounded to integers. */
    readonly truncate: boolean;
    readonly originalMaxPositions: number;
  }
  | {
    readonly type: "longrope";
    /** The factor by which the longest position grew. */
    readonly factor: number;
    /** Factor on cosines and sines, and that in long texts. @default follows from the other factors */
    readonly attentionFactor: number | undefined;
    readonly longAttentionFactor: number | undefined;
    /** Divisors of the frequencies, in texts of up to the original positions, and in longer ones. */
    readonly shortFactors: readonly number[];
    readonly longFactors: readonly number[];
    readonly originalMaxPositions: number;
  };

/** Sizes and options of a rotary embedding. */
export interface RotaryOptions {
  /** Elements of a head that are turned: even. */
  readonly dim: number;
  /** Base of the frequencies. */
  readonly theta: number;
  readonly scaling: RopeScaling;
  /** Most positions. */
  readonly maxPositions: number;
}

const f = Math.fround;

/** True if a text of `positions` positions has other angles than a short one. */
function isLong({ scaling }: RotaryOptions, positions: number): boolean {
  return scaling.type === "longrope" && positions > scaling.originalMaxPositions;
}

/**
 * Inverse frequencies [dim / 2] for a text of `positions` positions, rescaled (transformers `modeling_rope_utils.py`). Each step
 * is rounded to float32 as there: a position in the thousands multiplies the error of a frequency.
 */
export function inverseFrequencies(
  { math }: Device,
  options: RotaryOptions,
  positions: number = 0,
): Float32Array<ArrayBuffer> {
  const { dim, theta, scaling } = options;
  const rescaled = rescaling(math, options, isLong(options, positions));
  return Float32Array.from({ length: dim / 2 }, (_, i) => {
    const inverse = f(math.pow(theta, f(2 * i / dim)));
    return scaling.type === "default" ? 1 / inverse : rescaled(inverse, i);
  });
}

/** The function from `theta^(2i / dim)` and i to the rescaled inverse. */
function rescaling(math: PortableMath, options: RotaryOptions, long: boolean): (inverse: number, i: number) => number {
  const { scaling } = options;
  switch (scaling.type) {
    case "default":
      return (inverse) => f(1 / inverse);
    case "linear":
      return (inverse) => f(1 / inverse) / scaling.factor;
    case "longrope": {
      const factors = long ? scaling.longFactors : scaling.shortFactors;
      return (inverse, i) => 1 / f(f(at(factors, i, "factor")) * inverse);
    }
    case "llama3":
      return (inverse) => {
        const { factor, lowFreqFactor, highFreqFactor, originalMaxPositions } = scaling;
        const frequency = f(1 / inverse);
        const wavelength = f(f(1 / frequency) * f(2 * Math.PI));
        if (wavelength > originalMaxPositions / lowFreqFactor) return frequency / factor;
        if (wavelength < originalMaxPositions / highFreqFactor) return frequency;
        const turns = f(f(1 / wavelength) * originalMaxPositions);
        const smooth = f(f(turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor));
        return f(f(f(1 - smooth) * frequency) / factor) + f(smooth * frequency);
      };
    case "yarn": {
      const { factor, betaFast, betaSlow, truncate, originalMaxPositions } = scaling;
      const { dim, theta } = options;
      const dimOf = (turns: number): number =>
        dim * math.log(originalMaxPositions / (turns * 2 * Math.PI)) / (2 * math.log(theta));
      const [first, last] = [dimOf(betaFast), dimOf(betaSlow)];
      const low = Math.max(truncate ? Math.floor(first) : first, 0);
      const end = Math.min(truncate ? Math.ceil(last) : last, dim - 1);
      const high = low === end ? end + 0.001 : end;
      return (inverse, i) => {
        const kept = f(1 - Math.min(Math.max(f(f(i - low) / f(high - low)), 0), 1));
        return f(f(1 / f(factor * inverse)) * f(1 - kept)) + f(f(1 / inverse) * kept);
      };
    }
  }
}

/** The factor by which yarn raises a score, from a factor on positions and a share of it (`yarn_get_mscale` of transformers). */
function mscaleOf(factor: number, mscale: number, log: (x: number) => number): number {
  return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/** Factor of queries and keys in latent attention. */
export function yarnScale(scaling: RopeScaling): number {
  if (scaling.type !== "yarn" || !scaling.mscaleAllDim) return 1;
  return mscaleOf(scaling.factor, scaling.mscaleAllDim, Math.log);
}

/** The factor on cosines and sines. */
function attentionFactorOf({ math }: Device, scaling: RopeScaling, long: boolean): number {
  if (scaling.type !== "yarn" && scaling.type !== "longrope") return 1;
  const { factor, attentionFactor, originalMaxPositions } = scaling;
  const given = long && scaling.type === "longrope" ? scaling.longAttentionFactor : attentionFactor;
  if (given !== undefined) return given;
  if (scaling.type === "longrope") {
    return factor <= 1 ? 1 : Math.sqrt(1 + math.log(factor) / math.log(originalMaxPositions));
  }
  const { mscale, mscaleAllDim } = scaling;
  const scaleOf = (mscale: number): number => mscaleOf(factor, mscale, math.log);
  // As in transformers, a 0 is as if it were not there.
  return mscale && mscaleAllDim ? scaleOf(mscale) / scaleOf(mscaleAllDim) : scaleOf(1);
}

/** Cosines and sines, float32 [positions, dim / 2]. */
export type CosSin = readonly [cos: Tensor, sin: Tensor];

/** The tables of one model, or of one type of its layers. */
export class RotaryTables {
  /** The position numbers for which the tables hold angles. */
  readonly positions: PositionNumbers;
  readonly #device: Device;
  readonly #options: RotaryOptions;
  /** Those for short texts, and those for long ones where they differ. */
  readonly #tables = new Map<boolean, PositionRows<CosSin>>();

  constructor(device: Device, options: RotaryOptions) {
    this.#device = device;
    this.#options = options;
    this.positions = new PositionNumbers(device, options.maxPositions);
  }

  /**
   * The tables for a call of `seq` tokens: theirs, or all where only the device knows which are theirs.
   *
   * @throws {UnsupportedError} if documents lie in a row that is long enough for other angles than theirs
   */
  of(seq: number, { positionIds, pastKeyValues, documentStarts, rowLength = seq }: LayerContext): CosSin {
    const past = pastKeyValues === undefined ? 0 : pastKeyValues.length;
    const { scaling } = this.#options;
    if (documentStarts !== undefined && scaling.type === "longrope" && isLong(this.#options, rowLength)) {
      throw new UnsupportedError(
        `Cannot pack documents into rows of ${rowLength} tokens: the model's "longrope" turns texts of more than ` +
          `${scaling.originalMaxPositions} tokens by other angles than shorter ones, and a row has one set of angles. ` +
          `Use rows of at most ${scaling.originalMaxPositions} tokens, or pack nothing`,
      );
    }
    if (scaling.type === "longrope") pastKeyValues?.limit(scaling.originalMaxPositions);
    return positionIds === undefined ? this.rows(past, seq) : this.all(past + rowLength);
  }

  /** Rows of `count` positions from `start` on. */
  rows(start: number, count: number): CosSin {
    const [cos, sin] = this.upTo(start + count);
    return [cos.narrow(0, start, count), sin.narrow(0, start, count)];
  }

  /** All positions, by the angles of a text of `length`: for tokens whose positions only the device knows. */
  all(length: number): CosSin {
    return this.#tablesOf(isLong(this.#options, length), this.#options.maxPositions);
  }

  /** Tables of at least `positions` positions; buffers, so that no precision casts them. */
  upTo(positions: number): CosSin {
    return this.#tablesOf(isLong(this.#options, positions), positions);
  }

  #tablesOf(long: boolean, positions: number): CosSin {
    const { dim, maxPositions, scaling } = this.#options;
    let made = this.#tables.get(long);
    if (made === undefined || made.rows < positions) {
      this.#tables.delete(long); // if memory runs out, the next call makes new ones
      made?.[Symbol.dispose]();
      const rows = rowsFor(positions, maxPositions);
      using taken = new DisposableStack();
      const table = (): BufferTensor => {
        const shape = [rows, dim / 2];
        const buffer = taken.use(new BufferTensor(this.#device, shape, { persistent: false, kind: "activations" }));
        buffer.rename("rotary tables");
        buffer.materialize();
        return buffer;
      };
      using invFreq = Tensor.empty(this.#device, [dim / 2], float32, "rotary frequencies");
      invFreq.copyFromHost(inverseFrequencies(this.#device, this.#options, long ? Infinity : 0));
      const [cos, sin] = [table(), table()];
      const scale = attentionFactorOf(this.#device, scaling, long);
      const sizes = { positions: rows, half: dim / 2, scale };
      this.#device.kernels.ropeTable({ ...sizes, cos: cos.ptr, sin: sin.ptr, invFreq: invFreq.ptr });
      taken.move();
      made = new PositionRows(rows, [cos, sin]);
      this.#tables.set(long, made);
    }
    return made.read(this.#device);
  }
}
