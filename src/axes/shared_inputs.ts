/**
 * Layers that share one input (q, k, v; gate, up) share one gradient all-reduce in the backward. The shared input is known for the time
 * of one forward of the module.
 *
 * @module
 */
import { gradEnabled } from "../autograd/mode.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import { untrack } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { enter, type RegionAttrs } from "./ops.ts";

/** Entries of the forward under way of one module. */
export class SharedInputs {
  readonly #attrs: RegionAttrs;
  #entered: Map<Tensor, Tensor> | undefined;

  constructor(attrs: RegionAttrs) {
    this.#attrs = attrs;
  }

  /** Follows the forwards of a module. @returns ends that */
  follow(module: Module): HookHandle {
    return module.registerForwardPreHook(() => {
      this.#drop();
      this.#entered = new Map();
      return () => this.#drop();
    });
  }

  /** A tensor that all ranks have alike, as layers compute with it. */
  enter(x: Tensor): Tensor {
    const before = this.#entered?.get(x);
    if (before !== undefined && before.requiresGrad === (x.requiresGrad && gradEnabled())) return before;
    const entered = enter(x, this.#attrs);
    if (this.#entered === undefined) return entered;
    before?.dispose();
    untrack(entered); // the layer's own scope ends before the next layer's begins
    this.#entered.set(x, entered);
    return entered;
  }

  #drop(): void {
    for (const entered of this.#entered?.values() ?? []) entered.dispose();
    this.#entered = undefined;
  }
}
