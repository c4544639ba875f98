/**
 * One unit of communication: the parameters of one `fullyShard` call, gathered and reduced together. It goes
 * sharded → unsharded (forward) → sharded → unsharded (backward) → reduced and sharded; hooks drive it.
 *
 * @module
 */
import type { Parameter } from "../tensor/parameter.ts";
import type { ResolvedPolicy } from "./policy.ts";
import { FlatSegment } from "./segment.ts";

/** When a unit is gathered or reduced: part of the label that a collective carries. */
export type Phase = "forward" | "backward" | "manual";

/** What the units of one root share; made when the root first runs. */
export interface RootContext {
  /** All units of the root's tree, the root's first. */
  readonly units: readonly FsdpUnit[];
  /** Units in the order in which this step's forward left them, repeats included. */
  readonly forwardOrder: FsdpUnit[];
  /** Whether the root's end-of-backward callback is queued for the pass under way. */
  finalQueued: boolean;
}

/** A unit. */
export class FsdpUnit {
  /** What its parameters' FQNs begin with, or the module's class where they have nothing in common. */
  readonly name: string;
  readonly policy: ResolvedPolicy;
  readonly segments: readonly FlatSegment[];
  /** Whether parameters are freed after the forward; the root rule has been applied once the root has run. */
  reshardAfterForward: boolean;
  /** Whether the next backward reduces gradients. */
  requiresGradientSync = true;
  /** What reduced gradients are divided by. */
  gradientDivideFactor: number;
  /** Set when the root first runs. */
  context: RootContext | undefined;
  #unsharded = false;
  /** Whether this pass has reached the unit and has not left it yet. */
  #inBackward = false;

  constructor(name: string, parameters: readonly Parameter[], policy: ResolvedPolicy) {
    this.name = name;
    this.policy = policy;
    this.reshardAfterForward = policy.reshardAfterForward ?? true;
    this.gradientDivideFactor = policy.group.size;
    const trainable = parameters.filter((parameter) => parameter.trainable);
    const frozen = parameters.filter((parameter) => !parameter.trainable);
    this.segments = [trainable, frozen].filter((list) => list.length > 0).map((list, i) =>
      new FlatSegment(this, i === 0 ? name : `${name} (frozen)`, list)
    );
  }

  /** Whether the whole parameters are here. */
  get unsharded(): boolean {
    return this.#unsharded;
  }

  /** Gathers the parameters, unless they are here. */
  unshard(phase: Phase): void {
    if (this.#unsharded) return;
    for (const segment of this.segments) segment.unshard(`'${this.name}' (${phase})`);
    this.#unsharded = true;
  }

  /** Frees the whole parameters, unless they are gone. */
  reshard(): void {
    if (!this.#unsharded) return;
    for (const segment of this.segments) segment.reshard();
    this.#unsharded = false;
  }

  /** The backward reaches the unit: its parameters are needed again. */
  preBackward(): void {
    this.#inBackward = true;
    this.unshard("backward");
    if (this.policy.backwardPrefetch) this.#prefetch();
  }

  /** The backward has left the unit: reduces its gradients, if this pass is to, and frees the parameters. Runs once a pass. */
  postBackward(): void {
    if (!this.#inBackward) return;
    this.#inBackward = false;
    if (this.requiresGradientSync) {
      for (const segment of this.segments) segment.reduce(1 / this.gradientDivideFactor, `'${this.name}'`);
    } else {
      for (const segment of this.segments) for (const storage of segment.storages) storage.sink.finish();
    }
    this.reshard();
  }

  /** Gathers the unit that the forward left before this one. */
  #prefetch(): void {
    const order = this.context?.forwardOrder ?? [];
    const next = order[order.lastIndexOf(this) - 1];
    next?.unshard("backward");
  }
}
