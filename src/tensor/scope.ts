/**
 * Deterministic freeing: a tensor made inside a scope is freed at its end, unless it is kept. Scopes nest as calls do.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Tensor } from "./tensor.ts";

/** A span of code, at whose end its tensors are freed. */
export interface Scope extends Disposable {
  /** Moves tensors to the enclosing scope; from the outermost scope, out of all scopes. */
  keep(...tensors: readonly Tensor[]): void;
}

class TensorScope implements Scope {
  readonly #tensors = new Set<Tensor>();
  readonly #outer: TensorScope | undefined;

  constructor(outer: TensorScope | undefined) {
    this.#outer = outer;
  }

  add(tensor: Tensor): void {
    this.#tensors.add(tensor);
  }

  remove(tensor: Tensor): void {
    if (!this.#tensors.delete(tensor)) this.#outer?.remove(tensor);
  }

  keep(...tensors: readonly Tensor[]): void {
    for (const tensor of tensors) {
      if (this.#tensors.delete(tensor)) addTo(this.#outer, tensor);
    }
  }

  [Symbol.dispose](): void {
    if (current !== this) {
      throw new ArgumentError("Cannot end a scope while one inside it is open: is a scope held over an 'await'?");
    }
    current = this.#outer;
    for (const tensor of this.#tensors) tensor.dispose();
    this.#tensors.clear();
  }
}

let current: TensorScope | undefined;

/**
 * Opens a scope: tensors made until its end are freed then.
 *
 * @example
 * ```ts
 * import { openDevice } from "fullyshard/device";
 * import { scope, tensor } from "fullyshard";
 * const device = await openDevice("cpu");
 * const before = device.allocator.stats.inUse;
 * {
 *   using _frame = scope();
 *   tensor(device, [1, 2, 3]).mul(2).sum();
 * }
 * if (device.allocator.stats.inUse !== before) throw new Error("leaked");
 * ```
 */
export function scope(): Scope {
  current = new TensorScope(current);
  return current;
}

/** Adds a new tensor to the current scope. */
export function track(tensor: Tensor): Tensor {
  addTo(current, tensor);
  return tensor;
}

/** Adds a tensor to a scope; without one, the allocator notes the tensor as possibly leaked. */
function addTo(scope: TensorScope | undefined, tensor: Tensor): void {
  if (scope !== undefined) scope.add(tensor);
  else if (!tensor.disposed) tensor.device.allocator.unscoped.add(tensor);
}

/** Removes a tensor from its scope: the caller disposes it. */
export function untrack(tensor: Tensor): void {
  current?.remove(tensor);
  tensor.device.allocator.unscoped.delete(tensor);
}
