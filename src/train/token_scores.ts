/**
 * Losses of tokens one by one, without gradients: for evaluations, whose numbers may not depend on how rows are divided among ranks.
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import { UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { HostArray } from "../tensor/host.ts";
import { scope } from "../tensor/scope.ts";
import { inputsOf } from "./backward.ts";

/** Scores of a micro-batch's tokens, row-major [batch, seq]. */
export interface ScoredTokens {
  /** Cross-entropy in nats; 0 where the label is -100. */
  readonly losses: HostArray;
  /** The likeliest id at each position. */
  readonly likeliest: HostArray;
}

/**
 * Scores of the tokens of a micro-batch. Every rank of a sharded model must call it, inside of `evaluationMode`.
 *
 * @throws {UnsupportedError} if the model is one of its own kind whose forward gives no losses of single tokens
 */
export function scoreTokens(model: CausalLm, microBatch: MicroBatch): ScoredTokens {
  using _frame = scope();
  const { perToken } = noGrad(() => model.call({ ...inputsOf(model, microBatch, model.device), perToken: true }));
  if (perToken === undefined) {
    throw new UnsupportedError(
      `Cannot evaluate ${model.constructor.name}: its forward gives no 'perToken' where the inputs ask for it; return what ` +
        "LanguageModelHead gives",
    );
  }
  return { losses: perToken.losses.toArray(), likeliest: perToken.likeliest.toArray() };
}
