/**
 * The units below one root: the order in which a backward will reach them, and the end of each pass.
 *
 * Note [Uses of a unit]: a use is one forward of a unit. It is open until the backward has reached it or its graph is dropped. A
 * module that is called twice before a backward has two uses, and the backward reaches both. Their gradients are added first and
 * reduced then, as in DDP, so that FSDP and DDP give the same bits: the unit is reduced when its last use is reached. If a use of
 * another graph stays open, the unit is reduced at the end of the pass.
 *
 * Note [Unused parameters]: a reduction sums all parameters of a unit, so a parameter that no rank used has a sum of zeros. At the
 * end of the pass ranks exchange which parameters they used. A parameter that no rank used gets no gradient, and the optimizer skips
 * it, as with DDP and without ranks.
 *
 * @module
 */
import type { PassMember } from "../autograd/engine.ts";
import type { Work } from "../comm/data_plane.ts";
import type { Buffer } from "../device/buffer.ts";
import { usedOnAnyRank } from "../parallel/used.ts";
import type { FsdpUnit } from "./unit.ts";

/** One forward of a unit. See Note [Uses of a unit]. */
export class UnitUse {
  readonly unit: FsdpUnit;
  readonly #uses: UnitUse[];

  /** @param uses the open uses of the same root, in the order of the forward */
  constructor(unit: FsdpUnit, uses: UnitUse[]) {
    this.unit = unit;
    this.#uses = uses;
    uses.push(this);
  }

  /** The unit whose forward ended just before this one's. A backward reaches it next. */
  get previous(): FsdpUnit | undefined {
    const place = this.#uses.indexOf(this);
    return place > 0 ? this.#uses[place - 1]?.unit : undefined;
  }

  /** Ends the use. A second call does nothing. */
  close(): void {
    const place = this.#uses.lastIndexOf(this);
    if (place >= 0) this.#uses.splice(place, 1);
  }
}

/** An unsharded gradient and its reduction, of a unit. */
interface ReductionInput {
  readonly input: Buffer;
  readonly reduction: Work;
  /** The unit's name. */
  readonly unit: string;
}

/**
 * Unsharded gradients in reduction, the oldest first, of one root or of several that share them (PyTorch's `comm_ctx`). While a
 * gradient is held here, the next unit's gradients get other memory, and the compute stream need not wait until this one is reduced.
 */
export class ReductionInputs {
  readonly #roots: readonly FsdpUnit[];
  readonly #held: ReductionInput[] = [];

  /** @param roots the root units that share these inputs */
  constructor(roots: readonly FsdpUnit[]) {
    this.#roots = roots;
  }

  /**
   * Called before a reduction begins. Frees all but the newest `maxReduceScatterInputs - 1` gradients, so it waits for a reduction that
   * goes on until it is waited for: at most one of these is under way.
   */
  makeRoom(): void {
    this.release(this.#most - 1);
  }

  /**
   * Takes over a gradient whose reduction is enqueued on this stream, and frees the oldest.
   *
   * At most `maxReduceScatterInputs` input buffers are allocated at once, and the next unit's backward writes one of them. So `hold`
   * keeps one fewer: with 1 it frees `input` at once, behind its reduce-scatter; with n the newest n - 1 stay until later units'
   * reductions are enqueued. It keeps one more where the reduction goes on until it is waited for ({@link Work.endsInWait}).
   */
  hold(held: ReductionInput): void {
    this.#held.push(held);
    this.release(Math.max(this.#most - 1, held.reduction.endsInWait === true ? 1 : 0));
  }

  /** Frees all but the newest `kept` on the stream `reduce`, so after their reduction. */
  release(kept: number = 0): void {
    while (this.#held.length > kept) {
      const held = this.#held.shift();
      if (held === undefined) return;
      const { input, unit, reduction } = held;
      try {
        if (reduction.endsInWait === true) {
          using _wait = input.device.traits.trace?.begin("compute", "wait", `reduction wait ${unit}`, {});
          reduction.wait();
        }
      } finally {
        input.device.streams.on("reduce", () => input.release());
      }
    }
  }

  /** The largest `maxReduceScatterInputs` of the units of all roots. */
  get #most(): number {
    const units = this.#roots.flatMap((unit) => unit.root?.units ?? [unit]);
    return Math.max(...units.map(({ maxReduceScatterInputs }) => maxReduceScatterInputs));
  }
}

/** The units of one root. */
export class FsdpRoot implements PassMember {
  /** All units of the root's tree, the root first. */
  readonly units: readonly FsdpUnit[];
  readonly #uses: UnitUse[] = [];

  constructor(units: readonly FsdpUnit[]) {
    this.units = units;
  }

  /** The forward of a unit has ended: opens a use of it. */
  openUse(unit: FsdpUnit): UnitUse {
    return new UnitUse(unit, this.#uses);
  }

  /** True if a use of the unit is open, so that a backward may still reach it. */
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

  /** Ends the pass: reduces gradients that are still unreduced, also of earlier passes, sets all gradients, and frees parameters. */
  endPass(): void {
    for (const unit of this.units.toReversed()) unit.finalizeBackward(); // the same order on every rank
    for (const unit of this.units) unit.releaseInputs();
    this.#publishUsed();
    for (const unit of this.units) unit.reshardAfterPass();
  }

  abandonPass(): void {
    for (const unit of this.units) unit.abandonPass();
  }

  /** Exchanges which parameters were used, and sets the gradients of these: see Note [Unused parameters]. */
  #publishUsed(): void {
    const last = this.units.filter((unit) => unit.isLastBackward).flatMap(({ segments }) => segments);
    const reduced = last.filter((segment) => segment.isReduced);
    for (const [ranks, segments] of Map.groupBy(reduced, ({ unit }) => unit.policy.all)) {
      const used = usedOnAnyRank(ranks, segments.flatMap(({ storages }) => storages));
      for (const segment of segments) segment.publishGrads(used);
    }
  }
}
