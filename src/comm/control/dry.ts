/**
 * The control plane of a rank that is alone but thinks itself one of many: the others are taken to do what it does, at the
 * same time. So nothing is ever waited for, and every rank says what this one says.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CollectiveError, InternalError } from "../../errors.ts";
import { type Call, describeCall } from "../call.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { Place } from "./shared.ts";

/** Any rank of a world of any size. */
export class DryControlPlane implements ControlPlane {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly worldRanks: readonly number[];
  timeoutSeconds: number = Infinity;
  #call: Call | undefined;
  #stopped: string | undefined;

  constructor({ name, rank, worldRanks }: Place) {
    this.name = name;
    this.rank = rank;
    this.size = worldRanks.length;
    this.worldRanks = worldRanks;
  }

  announce(call: Call): void {
    this.#call = call;
    if (this.#stopped !== undefined) throw this.failure(this.#stopped);
  }

  exchange(bytes: Uint8Array): readonly Uint8Array[] {
    return new Array<Uint8Array>(this.size).fill(bytes.slice());
  }

  wait(ready: () => boolean, stage: string): void {
    if (!ready()) throw new InternalError(`a rank without peers waits for one (${stage})`);
  }

  notify(): void {}

  failure(detail: string, stoppedBy?: number): CollectiveError {
    const call = this.#call;
    const [op, sequence] = call === undefined ? ["no call yet", 0] : [describeCall(call), call.sequence];
    const facts = { group: this.name, rank: at(this.worldRanks, this.rank, "world rank of rank"), op, sequence };
    return new CollectiveError(stoppedBy === undefined ? facts : { ...facts, stoppedBy }, detail);
  }

  split(ranks: readonly number[], name: string): DryControlPlane {
    const worldRanks = ranks.map((rank) => at(this.worldRanks, rank, "world rank of rank"));
    return new DryControlPlane({ name, rank: ranks.indexOf(this.rank), worldRanks });
  }

  abort(reason: string): void {
    this.#stopped ??= reason;
  }

  dispose(): void {}
}
