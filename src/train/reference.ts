/**
 * The reference of a run that learns preferences: the model as it is before the first step, without a second copy of it.
 *
 * Note [Reference of a resumed run]: it is measured from the weights that the run began with, before those of the checkpoint are read,
 * so that it has the same bits again. A digest in the checkpoint tells of other ones.
 *
 * @module
 */
import { type Lora, loraOf } from "../adapters/lora.ts";
import { at } from "../at.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { sha256 } from "../runtime/checksum.ts";
import { type AnswerTable, logProbsOf, measureAnswers } from "./answers.ts";
import type { StepConfig } from "./config.ts";
import { baseIsReference, hasReference, precomputes } from "./preference_config.ts";
import type { Run } from "./run.ts";
import type { TextData } from "./text_data.ts";
import { scoreRows } from "./token_scores.ts";

/**
 * Log-probabilities of answers by the reference.
 *
 * @internal
 */
export interface Reference {
  /** Of each row of a micro-batch, in nats. Every rank must call it. */
  logProbsOf(microBatch: MicroBatch): readonly number[];
  /** Changes with the reference, where it was measured before the first step. */
  readonly digest?: string | undefined;
}

/** Measures all pairs of some data by the reference: by the model as it is now. Every rank must call it, in evaluation mode. */
export async function measureReference(
  run: Run,
  model: CausalLm,
  data: TextData,
  config: StepConfig,
): Promise<AnswerTable> {
  using _base = baseIsReference(config) ? adapterOf(model).disable() : undefined;
  return await measureAnswers(run, model, data);
}

/** The reference of the data that a run learns from. Every rank must call it, before the weights change. */
export async function openReference(
  run: Run,
  model: CausalLm,
  data: TextData,
  config: StepConfig,
): Promise<Reference> {
  if (!hasReference(config)) return NO_REFERENCE;
  if (!precomputes(config)) return baseReference(model);
  return tableReference(await measureReference(run, model, data, config));
}

/** The reference of a dry run: no number is looked at. */
export function dryReference(model: CausalLm, config: StepConfig): Reference {
  if (!hasReference(config)) return NO_REFERENCE;
  return precomputes(config) ? { logProbsOf: ({ batch }) => new Array<number>(batch).fill(0) } : baseReference(model);
}

/** The reference of a loss that has none. */
const NO_REFERENCE: Reference = { logProbsOf: () => [] };

function tableReference({ logProbs }: AnswerTable): Reference {
  return {
    digest: sha256([new Uint8Array(logProbs.buffer)]).slice(0, 16),
    logProbsOf: ({ pairs = [] }) =>
      Array.from(pairs).flatMap((pair) => [at(logProbs, 2 * pair, "row"), at(logProbs, 2 * pair + 1, "row")]),
  };
}

/** The model with its adapter off. */
function baseReference(model: CausalLm): Reference {
  const adapter = adapterOf(model);
  return {
    logProbsOf: (microBatch) => {
      using _base = adapter.disable();
      return logProbsOf(scoreRows(model, microBatch), microBatch);
    },
  };
}

function adapterOf(model: CausalLm): Lora {
  const adapter = loraOf(model);
  if (adapter === undefined) throw new InternalError("the reference is a model without its adapter, and there is none");
  return adapter;
}
