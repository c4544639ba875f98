/**
 * What a model says of its activations, so that the memory of a step can be predicted without running it.
 *
 * @module
 */

/** Sizes that decide how much memory a step takes. */
export interface BatchShape {
  /** Sequences in a micro-batch. */
  readonly batch: number;
  readonly seq: number;
  /** Bytes of an element in the compute dtype. */
  readonly computeBytes: number;
  /** Whether parameters have gradients already when a backward begins. */
  readonly accumulates: boolean;
}

/** Bytes of a model's activations and their gradients, by when they are alive; parameters and their gradients apart. */
export interface ActivationBytes {
  /** Saved by one block, from its forward to its backward. */
  readonly block: number;
  /** Most at once in the forward of one block, what it saves included. */
  readonly blockForward: number;
  /** Most at once in the backward of one block, what it saved included. */
  readonly blockBackward: number;
  /** Elements of the block's parameters whose gradients have been computed by then. */
  readonly blockBackwardGradients: number;
  /** Elements of the parameter whose gradient the loss computes: the head. */
  readonly head: number;
  /** Gradient that one block hands to the one before it. */
  readonly handed: number;
  /** Alive from before the first block or behind the last one until the backward reaches the last block. */
  readonly ends: number;
  /** Most at once while the loss is computed, besides all that is saved. */
  readonly loss: number;
  /** Most at once in the backward of the loss, besides all that is saved. */
  readonly lossBackward: number;
  /** Most at once in the backward of what lies before the first block. */
  readonly embeddingBackward: number;
}
