/**
 * Losses of tokens one by one: for evaluations, whose numbers may not depend on how rows are divided among ranks, and for losses of
 * answers, which are functions of sums over their tokens.
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import { joinNumbers, takePositions } from "../axes/positions.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import { UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { TokenScores } from "../nn/functional.ts";
import type { HeadOutput } from "../nn/head.ts";
import type { HostArray } from "../tensor/host.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { inputsOf } from "./backward.ts";
import { forwardThroughStages } from "./pipelined.ts";

/** Scores of a micro-batch's tokens, row-major [batch, seq]. */
export interface ScoredTokens {
  /** Cross-entropy in nats; 0 where the label is -100. */
  readonly losses: HostArray;
  /** The likeliest id at each position. */
  readonly likeliest: HostArray;
}

/**
 * Scores of the tokens of a micro-batch, on the host and without gradients. Every rank of a sharded model must call it, inside of
 * `evaluationMode`.
 *
 * @throws {UnsupportedError} if the model is one of its own kind whose forward gives no losses of single tokens
 */
export function scoreTokens(model: CausalLm, microBatch: MicroBatch): ScoredTokens {
  using _frame = scope();
  const { losses, likeliest } = noGrad(() => tokenScoresOf(model, microBatch));
  return { losses: losses.toArray(), likeliest: likeliest.toArray() };
}

/**
 * Losses of all tokens of a micro-batch of full rows, as {@link scoreTokens}, also where ranks share their positions: each of these ranks
 * gets all.
 *
 * @throws {UnsupportedError} as {@link scoreTokens}
 */
export function scoreRows(model: CausalLm, microBatch: MicroBatch): ArrayLike<number> {
  const { positions } = model;
  if (positions === undefined) return scoreTokens(model, microBatch).losses;
  using _frame = scope();
  const { losses } = noGrad(() => tokenScoresOf(model, takePositions(microBatch, positions)));
  return joinLosses(losses, microBatch, positions);
}

/** Losses of all positions of rows, from those of this rank's positions. Every rank that shares them must call it. */
export function joinLosses(losses: Tensor, rows: MicroBatch, positions: ProcessGroup): Float32Array<ArrayBuffer> {
  const own = Float32Array.from(losses.toArray());
  const all = positions.exchange(new Uint8Array(own.buffer), "losses of tokens");
  return joinNumbers(all.map((bytes) => new Float32Array(bytes.slice().buffer)), rows);
}

/**
 * As {@link scoreTokens}, also through the stages of a pipeline, where the rank of the last stage alone has scores.
 *
 * @throws {UnsupportedError} as {@link scoreTokens}
 */
export function scoreInStages(model: CausalLm, microBatch: MicroBatch): ScoredTokens | undefined {
  const { pipeline } = model;
  if (pipeline === undefined) return scoreTokens(model, microBatch);
  using _frame = scope();
  const inputs = { ...inputsOf(model, microBatch, model.device), perToken: true };
  const output = forwardThroughStages(model, pipeline, inputs);
  if (output === undefined) return undefined;
  const { losses, likeliest } = requirePerToken(model, output);
  return { losses: losses.toArray(), likeliest: likeliest.toArray() };
}

/**
 * Scores of the tokens of a micro-batch, [batch, seq]; the losses have gradients. Every rank of a sharded model must call it.
 *
 * @throws {UnsupportedError} as {@link scoreTokens}
 */
export function tokenScoresOf(model: CausalLm, microBatch: MicroBatch): TokenScores {
  return requirePerToken(model, model.call({ ...inputsOf(model, microBatch, model.device), perToken: true }));
}

function requirePerToken(model: CausalLm, { perToken }: HeadOutput): TokenScores {
  if (perToken !== undefined) return perToken;
  throw new UnsupportedError(
    `Cannot score the tokens of ${model.constructor.name}: its forward gives no 'perToken' where the inputs ask for it; return what ` +
      "LanguageModelHead gives",
  );
}
