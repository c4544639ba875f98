/**
 * Tensors that nodes save for their backward, and the check that they were not written since the forward.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Tensors saved for a node's backward, kept or computed again. */
export interface SavedTensors {
  /** The tensors, in the order in which the op saved them. */
  get(): readonly Tensor[];
  /** Saved tensors that have memory now. */
  held(): readonly Tensor[];
  /** Called once, when the node is freed. */
  free(): void;
}

/** Saved tensors that are kept from the forward to the backward. */
export class KeptTensors implements SavedTensors {
  #tensors: readonly Tensor[];

  /** Takes ownership of the tensors. */
  constructor(tensors: readonly Tensor[]) {
    this.#tensors = tensors;
  }

  get(): readonly Tensor[] {
    return this.#tensors;
  }

  held(): readonly Tensor[] {
    return this.#tensors;
  }

  free(): void {
    for (const tensor of this.#tensors) tensor.dispose();
    this.#tensors = [];
  }
}

/**
 * Refuses a saved tensor that was written since the forward.
 *
 * @param version version of its memory in the forward
 * @throws {ArgumentError} if the version differs
 */
export function requireUnwritten(op: string, { buffer }: Tensor, version: number | undefined): void {
  if (buffer.version === version) return;
  throw new ArgumentError(
    `Cannot run the backward of '${op}': '${buffer.owner}' was written after its forward, by an optimizer or by hand; run the ` +
      "forward again",
  );
}
