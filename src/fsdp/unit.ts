/**
 * One unit of communication: the parameters of one `fullyShard` call, which are gathered, reduced and freed together. Hooks
 * (`hooks.ts`) call it in this order:
 * 1. `beginForward` gathers the parameters; `endForward` frees them.
 * 2. `preBackward` gathers them again; `postBackward` reduces the gradients and frees the parameters.
 * 3. `finalizeBackward` reduces the rest at the end of the pass.
 *
 * @module
 */
import { activePass } from "../autograd/engine.ts";
import { gradEnabled } from "../autograd/mode.ts";
import type { Phase } from "../comm/call.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { GradientReducer } from "../tensor/parameter_storage.ts";
import type { Span } from "../runtime/trace.ts";
import { neighboursOf } from "../parallel/ranks.ts";
import { unwind } from "../unwind.ts";
import type { CustomCollectives, ReshardAfterForward, ResolvedPolicy } from "./policy.ts";
import { allReducePartial } from "./reduction.ts";
import { FsdpRoot, ReductionInputs, type UnitUse } from "./root.ts";
import { openSegments, takeOutValues } from "./opening.ts";
import type { FlatSegment } from "./segment.ts";

/** The parameters of one call of `fullyShard`. */
export class FsdpUnit implements GradientReducer {
  /** The modules whose forward needs the parameters; mostly one module. */
  readonly modules: readonly Module[];
  /**
   * The options of `fullyShard`, with their defaults.
   *
   * @internal
   */
  readonly policy: ResolvedPolicy;
  /**
   * The parameters: flat segments of those that require a gradient and of those that do not, and a segment for each that is cut
   * along a dim.
   *
   * @internal
   */
  readonly segments: readonly FlatSegment[] = [];
  /** True: the parameters are freed when a backward has left the unit. */
  reshardAfterBackward = true;
  /** True: a backward gathers the parameters. An embedding needs no values in its backward, so it may be false there. */
  unshardInBackward = true;
  /** Reduces gradients in the next backward. If false, they add up on each rank. */
  requiresGradientSync = true;
  /** Sums reduced gradients over replicas. If false, each replica adds up its own. */
  requiresAllReduce = true;
  /** Shows reduced gradients at the end of a pass. If false, a later pass does. */
  isLastBackward = true;
  /** The user's functions in place of the library's collectives; an undefined one leaves the library's. */
  readonly custom: CustomCollectives = { allGather: undefined, reduceScatter: undefined, allReduceHook: undefined };
  /** Number of reduce-scatter input buffers alive at once, see {@link ReductionInputs.hold}. The largest of a root's units counts. */
  maxReduceScatterInputs = 1;
  /**
   * Unsharded gradients in reduction, if this unit is a root.
   *
   * @internal
   */
  reductionInputs: ReductionInputs = new ReductionInputs([this]);
  /** Units that a forward gathers next, when it reaches this one. */
  forwardPrefetch: readonly FsdpUnit[] = [];
  /** Units that a backward gathers next, when it reaches this one; undefined leaves the choice to the policy. */
  backwardPrefetch: readonly FsdpUnit[] | undefined;
  /**
   * The root's units; undefined until the root's first forward.
   *
   * @internal
   */
  root: FsdpRoot | undefined;
  /** Ends the passes of a unit that was used without its root. */
  #alone: FsdpRoot | undefined;
  /** The phase that gathered the parameters; undefined while they are sharded, also post-forward over fewer ranks. */
  #unshardedIn: Phase | undefined;
  #reshardAfterForward: ReshardAfterForward;
  /** The ranks over which a forward reshards, if `reshardAfterForward` is a number (PyTorch's post-forward mesh). */
  #postForwardGroup: ProcessGroup | undefined;
  #gradientDivideFactor: number;
  /** The inverse of the divide factor: reductions multiply sums by it. Undefined where the unit has no parameters. */
  readonly #gradientScale: DeviceScalar | undefined;
  /** True while the backward is in the unit: it has reached it and not left it. */
  #inBackward = false;
  /** The modules that have not been called yet in the forward under way; empty without a forward. */
  readonly #pendingModules = new Set<Module>();
  /** True if this forward, or a prefetch for it, did the all-gather. Only then does a throw reshard: `unshard()` survives it. */
  #forwardGathered = false;
  #isDisposed = false;
  /** True if an earlier unit's forward has prefetched the parameters, and this unit's forward has not begun. */
  #isPrefetched = false;
  /** Spans of the forward and of the backward under way, in a trace. */
  readonly #spans: { forward?: Span | undefined; backward?: Span | undefined } = {};

  /**
   * Opens the segments and copies the values that parameters have. Collective. The parameters change in {@link bindParameters} only. If the
   * constructor fails on a rank, it fails on all, no parameter has changed, and no rank keeps memory.
   *
   * @param merged units whose parameters become this unit's
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
    this.#gradientDivideFactor = policy.all.size; // shards times replicas
    ({ segments: this.segments, scale: this.#gradientScale } = openSegments(this, parameters, merged));
  }

  /** Makes the parameters the unit's. They must be plain. */
  bindParameters(): void {
    for (const segment of this.segments) segment.bindParameters();
  }

  /** FQNs of the modules; for a root, and before the modules have names, the name of the class. */
  get name(): string {
    const nameOf = ({ fqn, constructor }: Module): string => fqn === undefined || fqn === "" ? constructor.name : fqn;
    return this.modules.map(nameOf).join(", ");
  }

  /**
   * The unsharded parameters after a forward: true frees them, false keeps them. A number n reshards them over n ranks, each of which
   * keeps its shard of them. Undefined: the root's first forward sets false for the root, and the other units free theirs.
   */
  get reshardAfterForward(): ReshardAfterForward {
    return this.#reshardAfterForward;
  }

  /** A number of ranks is collective. @throws {ArgumentError} if it does not divide the ranks that share the unit */
  set reshardAfterForward(choice: ReshardAfterForward) {
    const { size } = this.policy.group;
    if (typeof choice === "number" && !(Number.isInteger(choice) && choice >= 1 && size % choice === 0)) {
      throw new ArgumentError(
        `Cannot reshard '${this.name}' to ${choice} ranks after its forward: give a number that divides the ${size} ranks which share ` +
          "it, true or false",
      );
    }
    this.#reshardAfterForward = choice === 1 ? false : choice === size ? true : choice;
    this.#postForwardGroup = typeof this.#reshardAfterForward === "number"
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

  /** True if the parameters are gathered, or a gather is under way. */
  get unsharded(): boolean {
    return this.#unshardedIn !== undefined;
  }

  /** Begins a span of the unit on the trace's compute track; undefined without a trace. */
  #span(cat: "unit" | "wait" | "free", what: string): Span | undefined {
    const trace = this.segments[0]?.computeDevice.traits.trace;
    return trace?.begin("compute", cat, `${what} ${this.name}`, { unit: this.name });
  }

  /** Starts the gather of the parameters, unless they are gathered. They may be read after {@link waitForGather}. */
  unshard(phase: Phase): void {
    if (phase !== "backward" || this.unshardInBackward) this.#gather(phase);
  }

  #gather(phase: Phase): void {
    if (this.#unshardedIn !== undefined) return;
    try {
      for (const segment of this.segments) segment.unshard(phase);
    } catch (error) {
      unwind(this.segments.map((segment) => () => segment.reshard()));
      throw error;
    }
    this.#unshardedIn = phase;
  }

  /** Makes all that is enqueued from now on wait for the gather under way. */
  waitForGather(): void {
    for (const segment of this.segments) segment.waitForGather();
  }

  /** Frees the unsharded parameters or the post-forward shards. Does nothing if there are neither. */
  reshard(): void {
    this.#free(undefined);
  }

  /** Reshards; with `postForwardGroup`, each of its ranks keeps its shard of the unsharded parameters. */
  #free(postForwardGroup: ProcessGroup | undefined): void {
    if (postForwardGroup !== undefined && this.#unshardedIn === undefined) return;
    using _span = this.#unshardedIn === undefined ? undefined : this.#span("free", "free");
    for (const segment of this.segments) segment.reshard(postForwardGroup);
    this.#unshardedIn = undefined;
  }

  /** The forward of a module begins: gathers the parameters. Where this throws, it leaves nothing behind. */
  beginForward(): void {
    const isFirst = this.#pendingModules.size === 0;
    if (isFirst) {
      this.#forwardGathered = !this.unsharded || this.#isPrefetched;
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

  /** Begins to gather for a forward that has not begun. */
  #prefetchForward(): void {
    if (this.unsharded || this.#isDisposed) return;
    this.unshard("forward");
    this.#isPrefetched = true;
  }

  /** Cleans up after a module's forward has thrown: reshards if it has gathered. For a root, cleans up all units below too. */
  abandonForward(): void {
    this.#dropForward();
    if (this.#forwardGathered) this.reshard();
    if (this.root?.units[0] === this) this.root.abandonForward();
  }

  /** Cleans up after the root's forward has thrown: frees parameters that were gathered for a forward, since it may never come. */
  abandonRootForward(): void {
    this.#dropForward();
    if (this.#unshardedIn === undefined || this.#unshardedIn === "forward") this.reshard();
  }

  #dropForward(): void {
    this.#pendingModules.clear();
    this.#isPrefetched = false;
    this.#spans.forward?.end();
  }

  /** Called when a backward pass recomputes the forward of a module: see Note [Recomputed forwards]. */
  recomputeForward(): void {
    this.joinPass();
    this.#need(() => this.#gather("backward"));
  }

  /** Gathers, and makes all that is enqueued from now on wait for that. */
  #need(gather: () => void): void {
    using _wait = this.#span("wait", "gather wait");
    gather();
    this.waitForGather();
  }

  /** The forward of a module has ended. When all modules have been called, frees the unsharded parameters. */
  endForward(module: Module): void {
    this.#pendingModules.delete(module);
    if (this.#pendingModules.size === 0) this.#endForward();
  }

  /** The root's forward has ended: frees the parameters, also if some modules were not called. */
  endRootForward(): void {
    if (this.#pendingModules.size === 0 && !this.#isPrefetched) return;
    this.#pendingModules.clear();
    this.#isPrefetched = false;
    this.#endForward();
  }

  /** Reshards, unless `reshardAfterForward` is false. Under `noGrad` it also keeps what the user gathered with `unshard()`. */
  #endForward(): void {
    const stays = this.#reshardAfterForward === false || (!gradEnabled() && this.#unshardedIn === "manual");
    if (!stays) this.#free(this.#postForwardGroup);
    this.#spans.forward?.end();
  }

  /** Makes the backward pass under way call the unit's root when it ends. */
  joinPass(): void {
    const pass = activePass();
    if (pass === undefined) throw new InternalError(`'${this.name}' got a gradient outside a backward pass`);
    pass.join(this.root ?? (this.#alone ??= new FsdpRoot([this])));
  }

  /**
   * Called when the backward reaches a use of the unit. Gathers its parameters, and starts the gathers of the units that come next.
   *
   * @internal
   */
  preBackward(use: UnitUse): void {
    this.joinPass();
    if (!this.#inBackward) this.#spans.backward = this.#span("unit", "backward");
    this.#inBackward = true;
    const { previous } = use;
    use.close();
    this.#need(() => this.unshard("backward"));
    const byPolicy = this.policy.backwardPrefetch && previous !== undefined ? [previous] : [];
    for (const next of this.backwardPrefetch ?? byPolicy) if (!next.#isDisposed) next.unshard("backward");
  }

  /**
   * Called when the backward has left a use of the unit. Reduces the gradients, unless another use is still open, and frees the
   * parameters.
   */
  postBackward(): void {
    if (!this.#inBackward) return;
    this.#inBackward = false;
    const isUsed = this.root?.isUsed(this) === true;
    if (!isUsed) this.#reduceGradients();
    // A unit of one module frees its parameters even if a use is open: the module was called twice, and the second backward gathers
    // again. A unit of several modules keeps them until its last module is done, which is soon.
    if (!isUsed || this.modules.length === 1) this.reshardAfterPass();
    this.#spans.backward?.end();
  }

  /** Frees the unsharded parameters after a backward, unless `reshardAfterBackward` is false. */
  reshardAfterPass(): void {
    if (this.reshardAfterBackward) this.reshard();
  }

  /** PyTorch's root post-backward final callback, per unit: reduces what no post-backward hook has reduced, also in earlier passes. */
  finalizeBackward(): void {
    if (this.#inBackward || this.segments.some(({ gradients }) => gradients.isAccumulating)) this.#reduceGradients();
    this.#inBackward = false;
    this.#pendingModules.clear();
    this.#allReduce();
    this.#spans.backward?.end();
  }

  /**
   * The unsharded gradients in reduction of this unit's root: see Note [Reductions].
   *
   * @internal
   */
  get rootInputs(): ReductionInputs {
    return (this.root?.units[0] ?? this).reductionInputs;
  }

  /** Frees unsharded gradients that were reduced, if this unit is a root. */
  releaseInputs(): void {
    this.reductionInputs.release();
  }

  /** Called when the pass has failed. Clears gradients, and frees gathered parameters. */
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

  /** Frees everything. Collective. Later prefetches of this unit do nothing. */
  dispose(): void {
    this.#isDisposed = true;
    this.reshard();
    for (const segment of this.segments) segment.dispose();
    this.#gradientScale?.[Symbol.dispose]();
  }

  /**
   * Makes the parameters plain ones again, with the values that they have. Collective. Where a rank has no memory for them, the unit
   * stays as it is on all ranks.
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

  /** Sums partial gradients over replicas, of this pass and of earlier ones. */
  #allReduce(): void {
    if (!this.requiresGradientSync || !this.requiresAllReduce || this.#gradientScale === undefined) return;
    for (const segment of this.segments) allReducePartial(segment, this.#gradientScale);
  }
}
