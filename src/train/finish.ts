/**
 * The end of a run that took all its steps: the model's folder, and a sample of what it writes.
 *
 * @module
 */
import type { Tokenizer } from "../data/tokenizer.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Logger } from "../runtime/log.ts";
import { hasAdapter } from "./adapter_config.ts";
import { requirePrompt } from "./checks.ts";
import type { RunConfig } from "./config.ts";
import { generate } from "./generate.ts";
import type { Run } from "./run.ts";
import { saveModel } from "./save_model.ts";
import type { TextData } from "./text_data.ts";
import type { FinishedModel } from "./trainer_options.ts";

/** The prompt of a sample. */
export interface SamplePrompt {
  readonly text: string;
  readonly ids: readonly number[];
}

/**
 * Prompt of the sample, if there is to be one. Refused before training if it leaves no position for the sample.
 *
 * @throws {ConfigError}
 */
export async function openPrompt(
  { sampleTokens, prompt }: Pick<RunConfig, "sampleTokens" | "prompt">,
  model: CausalLm,
  data: TextData,
): Promise<SamplePrompt | undefined> {
  if (sampleTokens === 0) return undefined;
  const text = prompt ?? await data.beginning(model.maxPositions >> 1);
  return { text, ids: requirePrompt(text, data.tokenizer, model) };
}

/** Writes the model and continues the prompt. Every rank must call it. @throws {FileError} if a file cannot be written */
export async function finishModel(
  { out, sampleTokens, seed }: Pick<RunConfig, "out" | "sampleTokens" | "seed">,
  run: Pick<Run, "group">,
  model: CausalLm,
  tokenizer: Tokenizer,
  prompt: SamplePrompt | undefined,
  log: Logger,
): Promise<FinishedModel> {
  const folder = `${out}/model`;
  await saveModel(model, folder, run.group);
  const what = hasAdapter(model) ? "adapter" : "model";
  log.info(`Wrote the ${what} to '${folder}': to train it further, give '--${what} ${folder}'`);
  if (prompt === undefined) return { folder, sample: undefined };
  const maxNewTokens = Math.min(sampleTokens, model.maxPositions - prompt.ids.length);
  // Ids beyond the vocabulary are never drawn.
  const named = tokenizer.eosId === undefined ? model.eosIds : [tokenizer.eosId, ...model.eosIds];
  const eosId = named.filter((id) => id < model.vocabSize);
  const ids = generate(model, prompt.ids, { maxNewTokens, seed, eosId });
  return { folder, sample: `${prompt.text}${tokenizer.decode(ids.filter((id) => id < tokenizer.vocabSize))}` };
}
