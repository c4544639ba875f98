/**
 * What the units below one root do together: the order in which a backward will reach them, and the end of each pass.
 *
 * Note [Uses of a unit]: a use is one forward of a unit whose backward may come. It hangs on the graph, so it ends when the
 * backward has reached it or when the graph is dropped. A module that runs twice before a backward is reached twice by it; all
 * contributions of a pass are added before they are reduced, as in DDP, so that both give the same bits: while a use is open
 * the reduction waits for it, or for the end of the pass where that use belongs to another one.
 *
 * Note [Unused parameters]: a reduction moves the whole unit, so a parameter that no rank used has a sum of zeros.
 * Ranks tell each other at the end of the pass which parameters they used: a parameter that no rank used gets no
 * gradient, so that the optimizer skips it, as in every other mode.
 *
 * @module
 */
import type { PassMember } from "../autograd/engine.ts";
import type { Buffer } from "../device/buffer.ts";
import { usedOnAnyRank } from "../parallel/used.ts";
import type { FsdpUnit } from "./unit.ts";

/** One forward of a unit. See Note [Uses of a unit]. */
export class Use {
  readonly unit: FsdpUnit;
  readonly #uses: Use[];

  /** @param uses the open ones of the same root, in the order of the forward */
  constructor(unit: FsdpUnit, uses: Use[]) {
    this.unit = unit;
    this.#uses = uses;
    uses.push(this);
  }

  /** The unit that the forward left before this one. */
  get previous(): FsdpUnit | undefined {
    const place = this.#uses.indexOf(this);
    return place > 0 ? this.#uses[place - 1]?.unit : undefined;
  }

  /** Ends it; a second call does nothing. */
  close(): void {
    const place = this.#uses.lastIndexOf(this);
    if (place >= 0) this.#uses.splice(place, 1);
  }
}

/**
 * Unsharded gradients that are being reduced, the oldest first, of one root or of several that share them (PyTorch's `comm_ctx`).
 * While a gradient is held here, its memory is not free for the next unit's gradients, so those need not wait for its reduction.
 */
export class ReductionInputs {
  readonly #roots: readonly FsdpUnit[];
  readonly #held: Buffer[] = [];

  /** @param roots the units whose trees they belong to */
  constructor(roots: readonly FsdpUnit[]) {
    this.#roots = roots;
  }

  /** Takes one over whose reduction is enqueued on this stream, and lets go of the oldest beyond what the units allow. */
  hold(input: Buffer): void {
    this.#held.push(input);
    const units = this.#roots.flatMap((unit) => unit.root?.units ?? [unit]);
    this.release(Math.max(...units.map(({ maxReduceScatterInputs }) => maxReduceScatterInputs)) - 1);
  }

  /** Lets go of all but the newest `kept`. */
  release(kept: number = 0): void {
    while (this.#held.length > kept) {
      const input = this.#held.shift();
      input?.device.streams.on("reduce", () => input.release());
    }
  }
}

/** The units of one root. */
export class FsdpRoot implements PassMember {
  /** All units of the root's tree, the root's first. */
  readonly units: readonly FsdpUnit[];
  readonly #uses: Use[] = [];

  constructor(units: readonly FsdpUnit[]) {
    this.units = units;
  }

  /** A forward of a unit has ended whose backward may come. */
  openUse(unit: FsdpUnit): Use {
    return new Use(unit, this.#uses);
  }

  /** Whether a backward may come to a unit. */
  isUsed(unit: FsdpUnit): boolean {
    return this.#uses.some((use) => use.unit === unit);
  }

  /** The root's forward has ended. */
  endForward(): void {
    for (const unit of this.units) unit.endRootForward();
  }

  /** The root's forward has failed. */
  abandonForward(): void {
    for (const unit of this.units) unit.abandonRootForward();
  }

  /** Reduces what has not been reduced, also what earlier passes left; then frees what is gathered. */
  endPass(): void {
    for (const unit of this.units.toReversed()) unit.reduceRest(); // the same order on every rank
    for (const unit of this.units) unit.releaseInputs();
    this.#readUsed();
    for (const unit of this.units) unit.reshardAfterPass();
  }

  abandonPass(): void {
    for (const unit of this.units) unit.abandonPass();
  }

  /** See Note [Unused parameters]. */
  #readUsed(): void {
    const last = this.units.filter((unit) => unit.isLastBackward).flatMap(({ segments }) => segments);
    const reduced = last.filter((segment) => segment.isReduced);
    for (const [ranks, segments] of Map.groupBy(reduced, ({ unit }) => unit.policy.all)) {
      const used = usedOnAnyRank(ranks, segments.flatMap(({ storages }) => storages));
      for (const segment of segments) segment.show(used);
    }
  }
}
