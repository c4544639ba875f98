/**
 * The control plane of a rank that is alone but thinks itself one of many: the others are taken to do what it does, at the
 * same time. So nothing is ever waited for, and every rank says what this one says.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import type { Call } from "../call.ts";
import type { FlightRecord } from "../flight_record.ts";
import { ControlPlane, type Place } from "../control_plane.ts";

/** Any rank of a world of any size. */
export class DryControlPlane extends ControlPlane {
  #stopped: string | undefined;

  constructor(place: Place) {
    super(place, Infinity);
  }

  announce(call: Call): void {
    this.call = call;
    if (this.#stopped !== undefined) throw this.failure(this.#stopped);
  }

  exchange(bytes: Uint8Array): readonly Uint8Array[] {
    return new Array<Uint8Array>(this.size).fill(bytes.slice());
  }

  wait(ready: () => boolean, stage: string): void {
    if (!ready()) throw new InternalError(`a rank without peers waits for one (${stage})`);
  }

  watch(ready: () => boolean, stage: string): void {
    this.wait(ready, stage);
  }

  get stopped(): boolean {
    return this.#stopped !== undefined;
  }

  notify(): void {}

  report(): void {}

  flightRecord(): FlightRecord {
    return { group: this.name, rank: this.worldRank(this.rank), ranks: [] };
  }

  split(ranks: readonly number[], name: string): DryControlPlane {
    return new DryControlPlane(this.placeIn(ranks, name));
  }

  abort(reason: string): void {
    this.#stopped ??= reason;
  }

  dispose(): void {}
}
