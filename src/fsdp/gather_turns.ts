/**
 * The order between gathers and the computation on a card, which bounds the memory of gathered parameters.
 *
 * Note [Gathers and computation]: the host enqueues a step faster than a card computes it. It counts an unsharded buffer as free as
 * soon as the free is enqueued, but the card frees it after the computation that reads it. Without an order, a card with enough
 * memory could gather all units while it computes the first. So the gather of a unit waits for the computation of each resharded unit
 * 1. whose reshard was enqueued before the previous gather, or
 * 2. whose gather was enqueued before the gather of a unit that is still unsharded.
 * It waits for nothing else, so it overlaps with the computation of the unit that was gathered last, or that is still unsharded:
 * ```text
 * one by one:     gather A | reshard A | gather B beside A | reshard B | gather C after A, beside B
 * with prefetch:  gather A | gather B beside A | reshard A | gather C after A, beside B
 * ```
 * So at most two units that are gathered one by one are in memory, and one more for each unit that is prefetched. Registered memory
 * has the same order of its own, by slots: `comm/data/gather_slots.ts`.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { DeviceEvent, Streams } from "../device/stream.ts";

/** A unit that was resharded, and for which no gather has waited yet. */
interface Resharded {
  readonly unit: object;
  /** An event behind the computation that read its unsharded parameters. */
  readonly event: DeviceEvent;
  /** Number of its gather. */
  readonly gather: number;
  /** Number of the newest gather when it was resharded. */
  readonly newest: number;
}

/** The gathers of a device's units, numbered from 1 in the order in which they are enqueued. */
export class GatherTurns {
  readonly #streams: Streams;
  /** The unsharded units, and the number of the gather of each. */
  readonly #unsharded = new Map<object, number>();
  /** The resharded units, the oldest first. */
  #resharded: readonly Resharded[] = [];
  #newest = 0;

  constructor(streams: Streams) {
    this.#streams = streams;
  }

  /** Called before a unit's gather is enqueued, for each of its segments: makes the gather stream wait for the units named above. */
  beginGather(unit: object): void {
    if (this.#unsharded.has(unit)) return; // another segment of it
    const latest = Math.max(0, ...this.#unsharded.values());
    const awaited = this.#resharded.findLast(({ gather, newest }) => newest < this.#newest || gather < latest);
    if (awaited !== undefined) {
      // Computation is in order, so this is behind all that was resharded before.
      this.#streams.get("gather").wait(awaited.event);
      this.#resharded = this.#resharded.slice(this.#resharded.indexOf(awaited) + 1);
    }
    this.#unsharded.set(unit, ++this.#newest);
  }

  /** Called when the free of unsharded parameters has been enqueued on the current stream, for each segment of a unit. */
  endUse(unit: object): void {
    const event = this.#streams.current.record();
    const [gather, last] = [this.#unsharded.get(unit), this.#resharded.at(-1)];
    if (gather !== undefined) {
      this.#unsharded.delete(unit);
      this.#resharded = [...this.#resharded, { unit, event, gather, newest: this.#newest }];
    } else if (last?.unit === unit) {
      this.#resharded = [...this.#resharded.slice(0, -1), { ...last, event }]; // another segment of it
    }
  }
}

const TURNS: WeakMap<Device, GatherTurns> = new WeakMap();

/** The order of the gathers of a device. */
export function gatherTurnsOf(device: Device): GatherTurns {
  const turns = TURNS.get(device) ?? new GatherTurns(device.streams);
  TURNS.set(device, turns);
  return turns;
}
