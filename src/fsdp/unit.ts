/**
 * One unit of communication: the parameters of one `fullyShard` call, gathered and reduced together. It goes
 * sharded → unsharded (forward) → sharded → unsharded (backward) → reduced and sharded; hooks drive it.
 *
 * @module
 */
import { activePass } from "../autograd/engine.ts";
import { gradEnabled } from "../autograd/mode.ts";
import type { Phase } from "../comm/call.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Buffer } from "../device/buffer.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import type { GradientReducer, Parameter } from "../tensor/parameter.ts";
import type { Span } from "../runtime/trace.ts";
import { neighboursOf } from "../parallel/ranks.ts";
import { unwind } from "../unwind.ts";
import type { CustomCollectives, ReshardAfterForward, ResolvedPolicy } from "./policy.ts";
import { FsdpRoot, ReductionInputs, type Use } from "./root.ts";
import { openSegments, takeOutValues } from "./opening.ts";
import type { FlatSegment } from "./segment.ts";

/** A unit. */
export class FsdpUnit implements GradientReducer {
  /** The modules that it is gathered for, mostly one. */
  readonly modules: readonly Module[];
  /**
   * What {@link fullyShard} was told, complete.
   *
   * @internal
   */
  readonly policy: ResolvedPolicy;
  /**
   * Its parameters, flat: one segment for each kind of them.
   *
   * @internal
   */
  readonly segments: readonly FlatSegment[] = [];
  /** Whether parameters are freed when a backward has left the unit. */
  reshardAfterBackward = true;
  /** Whether a backward gathers the parameters, which an embedding's needs not. */
  unshardInBackward = true;
  /** Whether the next backward reduces gradients; without, they add up on each rank. */
  requiresGradientSync = true;
  /** Whether reduced gradients are summed over replicas; without, each replica adds up its own. */
  requiresAllReduce = true;
  /** Whether the end of a pass shows reduced gradients; without, that of a later one does. */
  isLastBackward = true;
  /** What a user has put in the place of collectives; undefined ones are the library's. */
  readonly custom: CustomCollectives = { allGather: undefined, reduceScatter: undefined, allReduceHook: undefined };
  /** Most unsharded gradients that are in reduction at a time. The largest number among a root's units counts. */
  maxReduceScatterInputs = 1;
  /**
   * Where unsharded gradients wait for their reduction, if this unit is a root.
   *
   * @internal
   */
  reductionInputs: ReductionInputs = new ReductionInputs([this]);
  /** Units that a forward gathers next, when it reaches this one. */
  forwardPrefetch: readonly FsdpUnit[] = [];
  /** Units that a backward gathers next, when it reaches this one; undefined leaves the choice to the policy. */
  backwardPrefetch: readonly FsdpUnit[] | undefined;
  /**
   * Set when the root first runs.
   *
   * @internal
   */
  root: FsdpRoot | undefined;
  /** Ends the passes of a unit that was used without its root. */
  #alone: FsdpRoot | undefined;
  /** What the unsharded parameters were gathered for; undefined while they are sharded. */
  #unsharded: Phase | undefined;
  #reshardAfterForward: ReshardAfterForward;
  /** The ranks that keep parts of the unsharded parameters after a forward, where they are fewer than share it. */
  #neighbours: ProcessGroup | undefined;
  #gradientDivideFactor: number;
  /** The inverse of the divide factor, which sums are multiplied by; undefined where there are no parameters. */
  readonly #gradientScale: DeviceScalar | undefined;
  /** Whether this pass has reached the unit and has not left it yet. */
  #inBackward = false;
  /** The modules that have not run yet in this forward; empty outside of one. */
  readonly #pendingModules = new Set<Module>();
  /** Whether the parameters were gathered for the forward under way, by it or by a prefetch, and so are freed if it fails. */
  #gathersForward = false;
  #isDisposed = false;
  /** Whether another unit's forward has gathered the parameters, and this one's has not begun. */
  #isPrefetched = false;
  /** The forward and the backward under way, in a trace. */
  readonly #spans: { forward?: Span | undefined; backward?: Span | undefined } = {};

  /**
   * Opens what the unit needs and copies the values that parameters have. Collective. Parameters change in {@link adopt} only: where
   * this fails, on whichever rank, they are what they were on all, and no rank keeps memory.
   *
   * @param merged units whose parameters become this one's
   */
  constructor(
    modules: readonly Module[],
    parameters: readonly Parameter[],
    policy: ResolvedPolicy,
    merged: readonly FsdpUnit[] = [],
  ) {
    this.modules = modules;
    this.policy = policy;
    this.reshardAfterForward = policy.reshardAfterForward;
    this.#gradientDivideFactor = policy.all.size;
    ({ segments: this.segments, scale: this.#gradientScale } = openSegments(this, parameters, merged));
  }

  /** Makes the parameters the unit's own. They must be plain. */
  adopt(): void {
    for (const segment of this.segments) segment.adopt();
  }

  /** FQNs of its modules; the class for a root, and before the tree has names. */
  get name(): string {
    const nameOf = ({ fqn, constructor }: Module): string => fqn === undefined || fqn === "" ? constructor.name : fqn;
    return this.modules.map(nameOf).join(", ");
  }

  /** What becomes of the parameters after the forward; undefined leaves it to the root rule, applied when the root first runs. */
  get reshardAfterForward(): ReshardAfterForward {
    return this.#reshardAfterForward;
  }

  /** Collective where it is a number of ranks. @throws {ArgumentError} if that does not divide the ranks that share the unit */
  set reshardAfterForward(choice: ReshardAfterForward) {
    const { size } = this.policy.group;
    if (typeof choice === "number" && !(Number.isInteger(choice) && choice >= 1 && size % choice === 0)) {
      throw new ArgumentError(
        `Cannot reshard '${this.name}' to ${choice} ranks after its forward: give a number that divides the ${size} ranks which share ` +
          "it, true or false",
      );
    }
    this.#reshardAfterForward = choice === 1 ? false : choice === size ? true : choice;
    this.#neighbours = typeof this.#reshardAfterForward === "number"
      ? neighboursOf(this.policy.group, this.#reshardAfterForward)
      : undefined;
  }

  get worldRanks(): readonly number[] {
    return this.policy.all.worldRanks;
  }

  get gradientDivideFactor(): number {
    return this.#gradientDivideFactor;
  }

  set gradientDivideFactor(factor: number) {
    this.#gradientDivideFactor = factor;
    if (this.#gradientScale !== undefined) this.#gradientScale.value = 1 / factor;
  }

  /** Whether the unsharded parameters are here. */
  get unsharded(): boolean {
    return this.#unsharded !== undefined;
  }

  /** Begins a span of the unit on the trace's compute track; undefined without a trace. */
  #span(cat: "unit" | "wait", what: string): Span | undefined {
    const trace = this.segments[0]?.computeDevice.trace;
    return trace?.begin("compute", cat, `${what} ${this.name}`, { unit: this.name });
  }

  /** Begins to gather the parameters, unless they are here; {@link waitForGather} orders their use after it. */
  unshard(phase: Phase): void {
    if (phase !== "backward" || this.unshardInBackward) this.#gather(phase);
  }

  #gather(phase: Phase): void {
    if (this.#unsharded !== undefined) return;
    try {
      for (const segment of this.segments) segment.unshard(phase);
    } catch (error) {
      for (const segment of this.segments) segment.reshard();
      throw error;
    }
    this.#unsharded = phase;
  }

  /** Orders what is enqueued from now on after the gather under way. */
  waitForGather(): void {
    for (const segment of this.segments) segment.waitForGather();
  }

  /** Frees the unsharded parameters, and what is kept of them, unless they are gone. */
  reshard(): void {
    this.#free(undefined);
  }

  /** Frees the unsharded parameters, but for a part on each of `keepers`, where those are given. */
  #free(keepers: ProcessGroup | undefined): void {
    if (keepers !== undefined && this.#unsharded === undefined) return;
    for (const segment of this.segments) segment.reshard(keepers);
    this.#unsharded = undefined;
  }

  /** The forward of one of its modules begins. Where this throws, it leaves nothing behind. */
  beginForward(): void {
    const isFirst = this.#pendingModules.size === 0;
    if (isFirst) {
      this.#gathersForward = !this.unsharded || this.#isPrefetched;
      this.#spans.forward = this.#span("unit", "forward");
      for (const module of this.modules) this.#pendingModules.add(module);
    }
    this.#isPrefetched = false;
    try {
      this.#need(() => this.unshard("forward"));
      if (isFirst) { for (const next of this.forwardPrefetch) next.#prefetchForward(); }
    } catch (error) {
      this.abandonForward();
      throw error;
    }
  }

  /** Begins to gather before the forward comes. */
  #prefetchForward(): void {
    if (this.unsharded || this.#isDisposed) return;
    this.unshard("forward");
    this.#isPrefetched = true;
  }

  /** The forward of one of its modules has failed; if the unit is a root, that of all units below has. */
  abandonForward(): void {
    this.#dropForward();
    if (this.#gathersForward) this.reshard();
    if (this.root?.units[0] === this) this.root.abandonForward();
  }

  /** The root's forward has failed: frees what was gathered for a forward, as none may come after it. */
  abandonRootForward(): void {
    this.#dropForward();
    if (this.#unsharded === undefined || this.#unsharded === "forward") this.reshard();
  }

  #dropForward(): void {
    this.#pendingModules.clear();
    this.#isPrefetched = false;
    this.#spans.forward?.end();
  }

  /** A forward of one of its modules is computed again in a backward pass: see Note [Recomputed forwards]. */
  recomputeForward(): void {
    this.joinPass();
    this.#need(() => this.#gather("backward"));
  }

  /** Begins to gather and orders what follows after that. */
  #need(gather: () => void): void {
    using _wait = this.#span("wait", "gather wait");
    gather();
    this.waitForGather();
  }

  /** The forward of one of its modules has ended: after the last one, frees the unsharded parameters. */
  endForward(module: Module): void {
    this.#pendingModules.delete(module);
    if (this.#pendingModules.size === 0) this.#endForward();
  }

  /** The root's forward has ended: modules that it left out are waited for no longer. */
  endRootForward(): void {
    if (this.#pendingModules.size === 0 && !this.#isPrefetched) return;
    this.#pendingModules.clear();
    this.#isPrefetched = false;
    this.#endForward();
  }

  /** Frees the unsharded parameters, unless they are to stay; an evaluation also leaves what was gathered by hand. */
  #endForward(): void {
    const stays = this.#reshardAfterForward === false || (!gradEnabled() && this.#unsharded === "manual");
    if (!stays) this.#free(this.#neighbours);
    this.#spans.forward?.end();
  }

  /** Makes sure that the pass under way tells the unit's root when it ends. */
  joinPass(): void {
    const pass = activePass();
    if (pass === undefined) throw new InternalError(`'${this.name}' got a gradient outside a backward pass`);
    pass.join(this.root ?? (this.#alone ??= new FsdpRoot([this])));
  }

  /**
   * The backward reaches a use of the unit: its parameters are needed again.
   *
   * @internal
   */
  preBackward(use: Use): void {
    this.joinPass();
    if (!this.#inBackward) this.#spans.backward = this.#span("unit", "backward");
    this.#inBackward = true;
    const { previous } = use;
    use.close();
    this.#need(() => this.unshard("backward"));
    const byPolicy = this.policy.backwardPrefetch && previous !== undefined ? [previous] : [];
    for (const next of this.backwardPrefetch ?? byPolicy) if (!next.#isDisposed) next.unshard("backward");
  }

  /** The backward has left a use of the unit: reduces its gradients, if no other use is open, and frees the parameters. */
  postBackward(): void {
    if (!this.#inBackward) return;
    this.#inBackward = false;
    const isUsed = this.root?.isUsed(this) === true;
    if (!isUsed) this.#reduceGradients();
    // A module that runs again is gathered again; modules that share the unit are near each other.
    if (!isUsed || this.modules.length === 1) this.reshardAfterPass();
    this.#spans.backward?.end();
  }

  /** Frees the unsharded parameters, unless they are to stay after a backward. */
  reshardAfterPass(): void {
    if (this.reshardAfterBackward) this.reshard();
  }

  /** The pass has ended: reduces what has not been, also gradients that earlier passes left unreduced. */
  reduceRest(): void {
    if (this.#inBackward || this.segments.some((segment) => segment.holdsUnshardedGradient)) this.#reduceGradients();
    this.#inBackward = false;
    this.#pendingModules.clear();
    this.#allReduce();
    this.#spans.backward?.end();
  }

  /** Takes over an unsharded gradient whose reduction is enqueued on this stream. */
  holdInput(input: Buffer): void {
    (this.root?.units[0] ?? this).reductionInputs.hold(input);
  }

  /** Lets go of unsharded gradients that were reduced, if this unit is a root. */
  releaseInputs(): void {
    this.reductionInputs.release();
  }

  /** The pass failed: gradients are cleared, and parameters that it gathered go. */
  abandonPass(): void {
    this.#inBackward = false;
    this.#dropForward();
    this.#spans.backward?.end();
    unwind([
      ...this.segments.map((segment) => () => segment.abandonPass()),
      () => this.releaseInputs(),
      () => this.reshard(),
    ]);
  }

  /** Frees everything; every rank must. Units that would have gathered this one before its turn leave it alone from now on. */
  dispose(): void {
    this.#isDisposed = true;
    this.reshard();
    for (const segment of this.segments) segment.dispose();
    this.#gradientScale?.[Symbol.dispose]();
  }

  /**
   * Makes its parameters plain ones again, with the values that they have; every rank must. Where a rank has no memory for them, the
   * unit stays as it is on all.
   *
   * @throws {OutOfMemoryError} on that rank
   */
  dissolve(): void {
    using values = takeOutValues(this.segments);
    this.dispose();
    values.give();
  }

  #reduceGradients(): void {
    const scale = this.requiresGradientSync ? this.#gradientScale : undefined;
    for (const segment of this.segments) {
      if (scale !== undefined) segment.reduceScatter(scale);
      else for (const { sink } of segment.storages) sink.finish();
    }
    this.#allReduce();
  }

  /** Sums over replicas what this one has summed, now or in earlier passes. */
  #allReduce(): void {
    if (!this.requiresGradientSync || !this.requiresAllReduce || this.#gradientScale === undefined) return;
    for (const segment of this.segments) segment.allReduce(this.#gradientScale);
  }
}
