/**
 * The backward of losses that the host computes of tokens' losses: see Note [Loss of pairs] in `preference_step.ts`.
 *
 * @module
 */
import { takeNumbers, takePositions } from "../axes/positions.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import { float32 } from "../dtype.ts";
import { tensor } from "../tensor/create.ts";
import { scope } from "../tensor/scope.ts";
import { StepFactors, type StepParts } from "./backward.ts";
import { joinLosses, tokenScoresOf } from "./token_scores.ts";

/** Full rows, and the gradients of a loss by the losses of their tokens. */
export interface ScoredRows {
  readonly rows: MicroBatch;
  /** @param losses of the tokens, row-major [batch, seq] */
  readonly slopesOf: (losses: ArrayLike<number>) => Float32Array<ArrayBuffer>;
}

/**
 * Adds the gradients of a mean loss to those of the model, micro-batch by micro-batch; they are reduced with the last. Every rank must call
 * it, as often. Ranks that share positions give equal rows, and compute equal slopes.
 *
 * @param examples of all ranks, by whose number the sum of losses is divided
 * @param count micro-batches
 * @throws {ArgumentError} if there are several ranks and nothing reduces some of the trained parameters
 */
export function scoredBackward(
  parts: StepParts,
  examples: number,
  count: number,
  microBatchOf: (i: number) => ScoredRows,
): void {
  const { model, device, scaler } = parts;
  using factors = new StepFactors(parts);
  factors.within(examples, () => {
    for (let i = 0; i < count; i++) {
      factors.synchronize(i === count - 1);
      using _frame = scope();
      const { rows, slopesOf } = microBatchOf(i);
      const { positions } = model;
      const { losses } = tokenScoresOf(model, positions === undefined ? rows : takePositions(rows, positions));
      const ofRows = slopesOf(positions === undefined ? losses.toArray() : joinLosses(losses, rows, positions));
      const own = positions === undefined ? ofRows : takeNumbers(ofRows, rows, positions);
      const slopes = tensor(device, own, { shape: losses.shape, dtype: float32 });
      const seed = factors.scaled(slopes.to(losses.dtype));
      losses.backward(scaler?.scale(seed) ?? seed);
    }
  });
}
