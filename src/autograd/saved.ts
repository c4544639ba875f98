/**
 * What nodes keep for their backward, and the rule that it must be what it was when the forward saw it.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** What a node keeps for its backward, or gets again when that asks for it. */
export interface SavedTensors {
  /** The tensors, in the order in which the op gave them. */
  get(): readonly Tensor[];
  /** Tensors that have memory for its sake now. */
  held(): readonly Tensor[];
  /** The node has let go: called once. */
  free(): void;
}

/** Tensors that are kept from the forward to the backward. */
export class KeptTensors implements SavedTensors {
  #tensors: readonly Tensor[];

  /** Owns the tensors from now on. */
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
 * Refuses a tensor that an op's forward saw with other values.
 *
 * @param version of its memory, in the forward
 * @throws {ArgumentError}
 */
export function requireUnwritten(op: string, { buffer }: Tensor, version: number | undefined): void {
  if (buffer.version === version) return;
  throw new ArgumentError(
    `Cannot run the backward of '${op}': '${buffer.owner}' was written after its forward, by an optimizer or by hand; run the ` +
      "forward again",
  );
}
