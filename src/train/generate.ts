/**
 * Text from a model, one token at a time. Every rank runs the same forward on the same tokens and draws the same numbers, so
 * a sharded model needs no more than its usual gathers.
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import { int32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { keyOf, uniformFraction } from "../random.ts";
import { tensor } from "../tensor/create.ts";
import { scope } from "../tensor/scope.ts";

/** How to generate. */
export interface GenerateOptions {
  /** Most new tokens. */
  readonly maxNewTokens: number;
  /** Scores are divided by it; 0 takes the likeliest token. Default 0.8. */
  readonly temperature?: number;
  /** Decides what is drawn. Default 0. */
  readonly seed?: number;
  /** Ends the text when drawn. */
  readonly eosId?: number;
}

/**
 * Continues a prompt. Every rank of a sharded model must call it with the same arguments.
 *
 * @param prompt at least one token id
 * @returns the new tokens, without the prompt
 * @throws {ArgumentError} if the prompt is empty
 */
export function generate(model: CausalLm, prompt: readonly number[], options: GenerateOptions): number[] {
  const { maxNewTokens, temperature = 0.8, seed = 0, eosId } = options;
  if (!(Number.isSafeInteger(maxNewTokens) && maxNewTokens >= 0 && temperature >= 0)) {
    throw new ArgumentError(
      `Cannot generate ${maxNewTokens} tokens at temperature ${temperature}: neither may be negative`,
    );
  }
  if (prompt.length === 0) throw new ArgumentError("Cannot generate from an empty prompt: give at least one token");
  const key = keyOf(seed, "generate");
  const tokens = [...prompt];
  while (tokens.length < prompt.length + maxNewTokens) {
    const seen = tokens.slice(-model.maxPositions);
    const next = noGrad(() => draw(model, seen, temperature, uniformFraction(key, tokens.length)));
    if (next === eosId) break;
    tokens.push(next);
  }
  return tokens.slice(prompt.length);
}

/** The next token: the one whose share of the probability `fraction` falls into. */
function draw(model: CausalLm, tokens: readonly number[], temperature: number, fraction: number): number {
  using _frame = scope();
  const inputIds = tensor(model.device, tokens, { shape: [1, tokens.length], dtype: int32 });
  const { logits } = model.call({ inputIds });
  if (logits === undefined) throw new InternalError("the model gave no logits");
  const last = logits.narrow(1, tokens.length - 1, 1).contiguous();
  if (temperature === 0) return last.argmax().item();
  const probabilities = last.mul(1 / temperature).softmax().toArray();
  let rest = fraction;
  for (const [token, probability] of probabilities.entries()) {
    rest -= probability;
    if (rest < 0) return token;
  }
  return probabilities.length - 1;
}
