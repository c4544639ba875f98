/**
 * Agreements of `bench/watching.ts` with its ranks: the models, and the files by which runs take turns.
 *
 * @module
 */
import { LLAMA_8M as EXAMPLE } from "../examples/llama_8m.ts";

/** The word for a run with a live page that is read, a trace and metrics. */
export const WATCHED = "watched";

/** A model, a step of it, and the number of steps of a turn. */
interface WatchedModel {
  readonly config: { readonly model_type: string; readonly vocab_size: number } & Readonly<Record<string, unknown>>;
  /** Samples of a step, of all ranks. */
  readonly batch: number;
  /** Tokens of each. */
  readonly seq: number;
  /** Steps before the first turn: compilers of JavaScript work beside them, of the page's Worker too. */
  readonly warmUp: number;
  readonly turn: number;
}

/** The models by name. A step of the first takes some 200 ms on two cores of a Xeon, of the other 5 ms. */
export const WATCHED_MODELS: Readonly<Record<string, WatchedModel>> = {
  "8m": { config: EXAMPLE, batch: 4, seq: EXAMPLE.max_position_embeddings, warmUp: 24, turn: 8 },
  tiny: {
    config: {
      ...EXAMPLE,
      vocab_size: 257,
      hidden_size: 64,
      intermediate_size: 128,
      num_hidden_layers: 2,
      num_attention_heads: 2,
      num_key_value_heads: 2,
    },
    batch: 4,
    seq: 64,
    warmUp: 600,
    turn: 200,
  },
};

/** Milliseconds of a step of a turn. */
export interface TurnTimes {
  readonly step: number;
  /** Milliseconds of processors, of all threads of rank 0's process. */
  readonly processor: number;
}

/** The file that lets a turn begin, or holds its {@link TurnTimes}. */
export function turnFile(folder: string, what: "begin" | "done", turn: number): string {
  return `${folder}/${what}-${turn}`;
}
