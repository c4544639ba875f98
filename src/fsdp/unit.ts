/**
 * One unit of communication: the parameters of one `fullyShard` call, gathered and reduced together. It goes
 * sharded → unsharded (forward) → sharded → unsharded (backward) → reduced and sharded; hooks drive it.
 *
 * Note [Uses of a unit]: a module that runs twice before a backward is reached twice by it. All contributions of a pass are
 * added before they are reduced, as in DDP, so that both give the same bits: while a use is open, the reduction waits for
 * it, or for the end of the pass where that use belongs to another one.
 *
 * @module
 */
import type { BackwardPass } from "../autograd/engine.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ResolvedPolicy } from "./policy.ts";
import { FlatSegment } from "./segment.ts";

/** When a unit is gathered: part of the record that a collective carries. */
export type Phase = "forward" | "backward" | "manual";

/** What the units of one root share; made when the root first runs. */
export interface RootContext {
  /** All units of the root's tree, the root's first. */
  readonly units: readonly FsdpUnit[];
  /** Units in the order in which the root's last forward left them, repeats included; a backward takes them off the end. */
  readonly forwardOrder: FsdpUnit[];
  /** The last backward pass that reached a unit: its end-of-backward callback is queued. */
  pass: BackwardPass | undefined;
}

/** What all names begin with, whole words only; undefined if nothing. */
function commonName(names: readonly string[]): string | undefined {
  const [first = [], ...others] = names.map((name) => name.split(".").slice(0, -1));
  const common = first.filter((_, i) =>
    others.every((words) => words.slice(0, i + 1).join() === first.slice(0, i + 1).join())
  );
  return common.length === 0 ? undefined : common.join(".");
}

/** A unit. */
export class FsdpUnit {
  readonly policy: ResolvedPolicy;
  readonly segments: readonly FlatSegment[];
  /** Whether parameters are freed after the forward; undefined leaves it to the root rule, applied when the root first runs. */
  reshardAfterForward: boolean | undefined;
  /** Whether the next backward reduces gradients. */
  requiresGradientSync = true;
  /** What reduced gradients are divided by. */
  gradientDivideFactor: number;
  /** Set when the root first runs. */
  context: RootContext | undefined;
  #unsharded = false;
  #disposed = false;
  /** Whether this pass has reached the unit and has not left it yet. */
  #inBackward = false;
  /** Forwards whose backward has not come yet. */
  #openUses = 0;
  #name: string;
  readonly #className: string;
  readonly #parameters: readonly Parameter[];

  /** @param className the module's class: its name where its parameters' names have nothing in common */
  constructor(className: string, parameters: readonly Parameter[], policy: ResolvedPolicy) {
    this.#className = className;
    this.#parameters = parameters;
    this.#name = this.#nameNow();
    this.policy = policy;
    this.reshardAfterForward = policy.reshardAfterForward;
    this.gradientDivideFactor = policy.group.size;
    const trainable = parameters.filter((parameter) => parameter.trainable);
    const frozen = parameters.filter((parameter) => !parameter.trainable);
    this.segments = [trainable, frozen].filter((list) => list.length > 0).map((list, i) =>
      new FlatSegment(this, i === 0 ? "" : " (frozen)", list)
    );
  }

  /** What its parameters' FQNs begin with, or the module's class. */
  get name(): string {
    return this.#name;
  }

  /** Takes the name over from parameters that were named after the unit was made. */
  rename(): void {
    this.#name = this.#nameNow();
  }

  /** Whether the whole parameters are here. */
  get unsharded(): boolean {
    return this.#unsharded;
  }

  /** Gathers the parameters, unless they are here. */
  unshard(phase: Phase): void {
    if (this.#unsharded) return;
    const done: FlatSegment[] = [];
    try {
      for (const segment of this.segments) {
        segment.unshard(phase);
        done.push(segment);
      }
    } catch (error) {
      for (const segment of done) segment.reshard();
      throw error;
    }
    this.#unsharded = true;
  }

  /** Frees the whole parameters, unless they are gone. */
  reshard(): void {
    if (!this.#unsharded) return;
    for (const segment of this.segments) segment.reshard();
    this.#unsharded = false;
  }

  /** A forward has ended whose backward may come. */
  openUse(): void {
    this.#openUses++;
    if (this.policy.backwardPrefetch) this.context?.forwardOrder.push(this);
  }

  /** A pass begins: nothing of an earlier one that failed is left. */
  beginPass(): void {
    this.#inBackward = false;
  }

  /** The backward reaches the unit: its parameters are needed again. */
  preBackward(): void {
    this.#inBackward = true;
    if (this.#openUses > 0) this.#openUses--;
    this.unshard("backward");
    if (this.policy.backwardPrefetch) this.#prefetch();
  }

  /** The backward has left a use of the unit: reduces its gradients, if it was the last and this pass is to, and frees the parameters. */
  postBackward(): void {
    if (!this.#inBackward) return;
    this.#inBackward = false;
    if (this.#openUses === 0) this.#settleGradients();
    this.reshard();
  }

  /** The pass has ended: reduces what has not been, also gradients that earlier passes left unreduced. */
  endPass(): void {
    if (this.#inBackward || this.segments.some((segment) => segment.holdsWholeGradient)) this.#settleGradients();
    this.#inBackward = false;
    this.#openUses = 0;
  }

  /** Frees everything; a second call does nothing. Every rank must. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.reshard();
    for (const segment of this.segments) segment.dispose();
  }

  #nameNow(): string {
    return commonName(this.#parameters.map(({ fqn }) => fqn)) ?? this.#className;
  }

  #settleGradients(): void {
    if (this.requiresGradientSync) {
      for (const segment of this.segments) segment.reduce(1 / this.gradientDivideFactor);
    } else {
      for (const segment of this.segments) for (const storage of segment.storages) storage.sink.finish();
    }
  }

  /** Gathers the unit that the forward left before this one. */
  #prefetch(): void {
    const order = this.context?.forwardOrder ?? [];
    const place = order.lastIndexOf(this);
    if (place < 0) return;
    order.length = place;
    order.at(-1)?.unshard("backward");
  }
}
