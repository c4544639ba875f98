/**
 * Exponential moving averages of weights (EMA), kept as one more state beside an optimizer's own: sharded, saved and resumed with them.
 * They are those of PyTorch's `AveragedModel` with `get_ema_multi_avg_fn(decay)`: a copy of the weights after the first step, then
 * `decay × average + (1 - decay) × weight` after each.
 *
 * @module
 */
import { at } from "../at.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import { valueText } from "../words.ts";
import type { OptimizerSettings } from "./groups.ts";
import type { StateSpec } from "./rule.ts";
import type { StateBucket } from "./states.ts";

/** Settings of an average. */
export type AverageSettings = Pick<OptimizerSettings, "emaDecay" | "emaStart">;

/** The name of the state. */
export const AVERAGE = "ema";

const STATES: readonly StateSpec[] = [{ name: AVERAGE, initial: "parameter" }];

/** The state of a group's parameters: the average, if the group has one. */
export function averageStates({ emaDecay }: AverageSettings): readonly StateSpec[] {
  return emaDecay === undefined ? [] : STATES;
}

/** @throws {ArgumentError} if a setting is out of range, or there is a start without an average */
export function requireAverage({ emaDecay, emaStart }: AverageSettings): void {
  if (emaDecay !== undefined && !(isWithin(emaDecay, 0) && emaDecay < 1)) {
    throw new ArgumentError(
      `Cannot average weights with emaDecay ${valueText(emaDecay)}: it must be from 0 to below 1`,
    );
  }
  if (emaStart === undefined) return;
  if (emaDecay === undefined) throw new ArgumentError("Cannot use emaStart without emaDecay: nothing is averaged");
  if (!(Number.isSafeInteger(emaStart) && emaStart >= 0)) {
    throw new ArgumentError(`Cannot begin to average after ${valueText(emaStart)} steps: give a whole number from 0`);
  }
}

/** The EMA factor of a step, for averages of some settings: 1 - decay. */
interface EmaFactor {
  readonly decay: number;
  /** Steps before the average begins. */
  readonly start: number;
  readonly factor: DeviceScalar;
}

/** Updates of averages. The EMA factor of each step lies on the device, so that a captured step reads it anew. */
export class AverageUpdates {
  /** EMA factors by device, and by the settings of groups. */
  readonly #factors = new Map<Device, Map<string, EmaFactor>>();

  /** Makes numbers on the device for settings that there are none for. Not while work is captured. */
  adopt<S extends OptimizerSettings>(buckets: readonly StateBucket<S>[]): void {
    for (const { flatShard: { device }, states, members } of buckets) {
      if (!states.has(AVERAGE)) continue;
      const factors = this.#factors.get(device) ?? new Map<string, EmaFactor>();
      this.#factors.set(device, factors);
      for (const { group, group: { emaDecay: decay, emaStart: start = 0 } } of members) {
        const key = keyOf(group);
        if (decay !== undefined && !factors.has(key)) {
          factors.set(key, { decay, start, factor: device.scalars.make(1) });
        }
      }
    }
  }

  /** Sets the EMA factors for the step that follows `stepsTaken`: 1, a copy, until the average begins. */
  begin(stepsTaken: number): void {
    for (const factors of this.#factors.values()) {
      for (const { decay, start, factor } of factors.values()) factor.value = stepsTaken <= start ? 1 : 1 - decay;
    }
  }

  /**
   * Takes a step's weights into the averages of a bucket's parameters, those without a gradient among them.
   *
   * @param averages address of the state of the first parameter
   * @param gate closed, it changes nothing
   */
  update<S extends OptimizerSettings>(
    { flatShard: { device, param }, members, states }: StateBucket<S>,
    averages: DevicePtr,
    gate: DevicePtr | undefined,
  ): void {
    const factors = this.#factors.get(device);
    const parts = states.get(AVERAGE)?.parts;
    if (factors === undefined || parts === undefined) return;
    for (const [index, { parameter, group }] of members.entries()) {
      const { offset, numel: n } = parameter.storage.shard;
      const factor = factors.get(keyOf(group))?.factor.ptr;
      if (n === 0 || factor === undefined) continue;
      const dst = devicePtr(averages + at(parts, index, "part of an average").begin * float32.byteLength);
      device.kernels.lerp({ n, weight: 1, dst, src: devicePtr(param + offset * float32.byteLength), factor, gate });
    }
  }

  /** Frees the numbers. */
  free(): void {
    for (const factors of this.#factors.values()) for (const { factor } of factors.values()) factor[Symbol.dispose]();
    this.#factors.clear();
  }
}

function keyOf({ emaDecay, emaStart }: AverageSettings): string {
  return JSON.stringify([emaDecay, emaStart]);
}

/** Elements that are exchanged at once. */
const PIECE = 2 ** 18;

/**
 * Exchanges weights and averages in place; a second call exchanges them back, to the same bits. Every rank must call it.
 *
 * @throws {OutOfMemoryError} if there is no room for a piece of at most 1 MiB: nothing is exchanged then
 */
export function exchangeAverages<S extends OptimizerSettings>(buckets: readonly StateBucket<S>[]): void {
  const averaged = buckets.filter(({ states }) => states.has(AVERAGE));
  using opened = new DisposableStack();
  const rooms = new Map<Device, Buffer>();
  const longest = Math.max(
    0,
    ...averaged.flatMap(({ members }) => members.map(({ parameter }) => parameter.storage.shard.numel)),
  );
  for (const { flatShard: { device } } of averaged) {
    if (rooms.has(device) || longest === 0) continue;
    const room = Buffer.allocate(
      device,
      Math.min(PIECE, longest) * float32.byteLength,
      "exchange of weights and averages",
      "optimizer",
    );
    rooms.set(device, opened.adopt(room, (buffer) => buffer.release()));
  }
  for (const bucket of averaged) {
    const { flatShard } = bucket;
    const room = rooms.get(flatShard.device);
    flatShard.beginWrite();
    try {
      if (room !== undefined) exchangeBucket(bucket, room);
    } finally {
      flatShard.endWrite();
    }
  }
}

function exchangeBucket<S extends OptimizerSettings>(
  { flatShard: { device, param }, members, states }: StateBucket<S>,
  { ptr }: Buffer,
): void {
  const state = states.get(AVERAGE);
  if (state === undefined) return;
  const room = { device, ptr };
  for (const [index, { parameter }] of members.entries()) {
    const { offset, numel } = parameter.storage.shard;
    const { begin } = at(state.parts, index, "part of an average");
    for (let done = 0; done < numel; done += PIECE) {
      const byteLength = Math.min(PIECE, numel - done) * float32.byteLength;
      const weights = { device, ptr: devicePtr(param + (offset + done) * float32.byteLength) };
      const average = state.memory.placeOf(begin + done);
      copyAcross(room, weights, byteLength);
      copyAcross(weights, average, byteLength);
      copyAcross(average, room, byteLength);
    }
  }
}
