/**
 * Text generation, one token at a time. Every rank makes the same forward on the same tokens and draws the same numbers, so a
 * sharded model needs only its usual gathers.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import { int32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { GenerationCache } from "../nn/cache.ts";
import type { HeadOutput } from "../nn/head.ts";
import { keyOf, uniformFraction } from "../random.ts";
import { tensor } from "../tensor/create.ts";
import { scope } from "../tensor/scope.ts";
import { valueText } from "../words.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import { forwardThroughStages } from "./pipelined.ts";
import { requireKnownKeys } from "../config/known_keys.ts";

/** Options of a generation. */
export interface GenerateOptions {
  /** Largest number of new tokens. */
  readonly maxNewTokens: number;
  /** Divisor of the logits; 0 takes the likeliest token. @default 0.8 */
  readonly temperature?: number;
  /** Seed of the drawn numbers. @default 0 */
  readonly seed?: number;
  /**
   * Ids that end the text when drawn; with an empty list, none does.
   *
   * @default `eosIds` of the model: `eos_token_id` of its `generation_config.json`, else of its `config.json`
   */
  readonly eosId?: number | readonly number[] | undefined;
  /** Keeps keys, values and states of earlier tokens, instead of computing them again for each new token. @default true */
  readonly useCache?: boolean;
}

/**
 * Continues a prompt. Every rank of a sharded model must call it with the same arguments.
 *
 * @param prompt at least one token id
 * @returns the new tokens, without the prompt and the token that ended the text
 * @throws {ArgumentError} if the prompt is empty, the model has fewer positions than prompt and new tokens take, or an id that
 *   ends the text is none of the model's
 * @example
 * ```ts
 * import { generate, launch, openModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * await model.load();
 * const ids = generate(model, [104, 105], { maxNewTokens: 8, temperature: 0 });
 * if (ids.length !== 8) throw new Error("nothing ends it earlier");
 * ```
 */
export function generate(model: CausalLm, prompt: readonly number[], options: GenerateOptions): number[] {
  return [...generateTokens(model, prompt, options)];
}

/**
 * Continues a prompt as {@link generate} does, and gives each token when it is drawn. A loop that ends early frees what is kept of the
 * text. Every rank of a sharded model must take the same tokens.
 *
 * @throws {ArgumentError} as {@link generate}, with the first token
 */
export function* generateTokens(
  model: CausalLm,
  prompt: readonly number[],
  options: GenerateOptions,
): Generator<number, undefined> {
  const known = { maxNewTokens: true, temperature: true, seed: true, eosId: true, useCache: true } as const;
  requireKnownKeys("generate", options, known);
  const { maxNewTokens, temperature = 0.8, seed = 0, useCache = true } = options;
  if (!(Number.isSafeInteger(maxNewTokens) && maxNewTokens >= 0 && isWithin(temperature, 0))) {
    throw new ArgumentError(
      `Cannot generate ${valueText(maxNewTokens)} tokens at temperature ${valueText(temperature)}: ` +
        "both must be numbers, and neither may be negative",
    );
  }
  if (prompt.length === 0) throw new ArgumentError("Cannot generate from an empty prompt: give at least one token");
  const ends = endsOf(model, options.eosId);
  const end = prompt.length + maxNewTokens;
  if (end > model.maxPositions) {
    throw new ArgumentError(
      `Cannot generate ${maxNewTokens} tokens after a prompt of ${prompt.length}: the model has ${model.maxPositions} positions; lower ` +
        "maxNewTokens or shorten the prompt",
    );
  }
  using _mode = evaluationMode(model);
  using cache = useCache ? model.createCache(end) : undefined;
  const key = keyOf(seed, "generate");
  const tokens = [...prompt];
  while (tokens.length < end) {
    if (cache?.isOutgrownBy(tokens.length)) cache.clear();
    const unseen = tokens.slice(cache?.length);
    const next = noGrad(() => draw(model, unseen, cache, temperature, uniformFraction(key, tokens.length)));
    if (ends.has(next)) break;
    tokens.push(next);
    yield next;
  }
}

function endsOf(model: CausalLm, given: GenerateOptions["eosId"]): ReadonlySet<number> {
  const ids = given === undefined ? model.eosIds : Array.isArray(given) ? given : [given];
  const bad = ids.find((id) => !(Number.isSafeInteger(id) && id >= 0 && id < model.vocabSize));
  if (bad === undefined) return new Set(ids);
  const where = given === undefined ? "eos_token_id of the model's configuration" : "eosId";
  const remedy = given === undefined ? "; give eosId, or correct the configuration" : "";
  throw new ArgumentError(
    `${where} must be below ${model.vocabSize}, the model's number of ids, got ${valueText(bad)}${remedy}`,
  );
}

/** Draws the next token: the one whose share of the probability contains `fraction`. */
function draw(
  model: CausalLm,
  tokens: readonly number[],
  cache: GenerationCache | undefined,
  temperature: number,
  fraction: number,
): number {
  using _frame = scope();
  const inputIds = tensor(model.device, tokens, { shape: [1, tokens.length], dtype: int32 });
  const inputs = { inputIds, pastKeyValues: cache, logitsToKeep: 1 };
  const { pipeline } = model;
  if (pipeline === undefined) return choose(model.call(inputs), temperature, fraction);
  const output = forwardThroughStages(model, pipeline, inputs);
  const own = output === undefined ? 0 : choose(output, temperature, fraction);
  const all = pipeline.group.exchangeText(String(own), "next token");
  return Number(at(all, pipeline.rankOf(pipeline.stages.length - 1), "token of rank"));
}

/** The token of the last position whose share of the probability contains `fraction`; at temperature 0 the likeliest one. */
function choose({ logits }: HeadOutput, temperature: number, fraction: number): number {
  if (logits === undefined) throw new InternalError("the model gave no logits");
  if (temperature === 0) return logits.argmax().item();
  const probabilities = logits.mul(1 / temperature).softmax().toArray();
  let rest = fraction;
  for (const [token, probability] of probabilities.entries()) {
    rest -= probability;
    if (rest < 0) return token;
  }
  return probabilities.length - 1;
}
