/**
 * What all causal language models have in common besides what they compute: their configuration, their blocks, and which
 * tensors a Hugging Face directory has of them.
 *
 * @module
 */
import { type DirectoryTensor, plainDirectoryTensors } from "../checkpoint/state_dict.ts";
import type { HeadOutput } from "../nn/head.ts";
import { Module } from "../nn/module.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** What a causal language model is given. */
export interface CausalLmInputs {
  /** Token ids, int32 [batch, seq]. */
  readonly inputIds: Tensor;
  /** The token that each position is to predict, int32 [batch, seq]; -100 counts for nothing. Already shifted. */
  readonly labels?: Tensor;
  /** uint8 [batch, seq]: 0 hides a token from attention (padding). */
  readonly attentionMask?: Tensor;
  /** int32 [batch, seq]. @default 0, 1, 2 … */
  readonly positionIds?: Tensor;
}

/** The facts of a model that others ask for. */
export interface CausalLmFacts {
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Number of token ids. */
  readonly vocabSize: number;
  /** Longest sequence. */
  readonly maxPositions: number;
  /** Names of tensors that are stored under another one's (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
}

/** A causal language model: with labels it gives the loss, else the scores. */
export abstract class CausalLm extends Module<[inputs: CausalLmInputs], HeadOutput> {
  readonly #facts: CausalLmFacts;

  constructor(facts: CausalLmFacts) {
    super();
    this.#facts = facts;
  }

  /** The transformer blocks, in the order of the forward. */
  abstract get layers(): readonly Module[];

  get hfConfig(): Readonly<Record<string, unknown>> {
    return this.#facts.hfConfig;
  }

  /** Number of token ids. */
  get vocabSize(): number {
    return this.#facts.vocabSize;
  }

  /** Longest sequence. */
  get maxPositions(): number {
    return this.#facts.maxPositions;
  }

  get tiedNames(): ReadonlyMap<string, string> {
    return this.#facts.tiedNames;
  }

  /** The tensors of a Hugging Face directory: overridden by families whose files are laid out otherwise than their parameters. */
  directoryTensors(): Iterable<DirectoryTensor> {
    return plainDirectoryTensors(this);
  }
}
