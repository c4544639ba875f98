/**
 * The control plane of a dry run: one rank alone stands for a world of any size. All other ranks are taken to do the same at
 * the same time, so no wait ever blocks, and an exchange gives this rank's bytes for every rank.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import type { Call } from "../call.ts";
import type { FlightRecord } from "../flight_record.ts";
import { ControlPlane, type Place } from "../control_plane.ts";

/** One rank of a dry world. */
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
