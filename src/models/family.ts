/**
 * What a model family is: how to read its Hugging Face config and build the model, and which modules are sharding units.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { ActivationBytes, BatchShape } from "../nn/activations.ts";
import type { Module } from "../nn/module.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** What a causal language model is given. */
export interface CausalLmInputs {
  /** Token ids, int32 [batch, seq]. */
  readonly inputIds: Tensor;
  /** The token that each position is to predict, int32 [batch, seq]; -100 counts for nothing. Already shifted. */
  readonly labels?: Tensor;
  /** uint8 [batch, seq]: 0 hides a token from attention (padding). */
  readonly attentionMask?: Tensor;
  /** int32 [batch, seq]; 0, 1, 2 … unless given. */
  readonly positionIds?: Tensor;
}

/** What a causal language model returns. */
export interface CausalLmOutputs {
  /** Scores of the next token [batch, seq, vocab]; only without labels, since the loss never holds all of them. */
  readonly logits?: Tensor;
  /** Sum over labeled tokens of the cross-entropy: a float32 scalar; with labels only. */
  readonly loss?: Tensor;
}

/** A causal language model. */
export interface CausalLm extends Module<[inputs: CausalLmInputs], CausalLmOutputs> {
  /** Modules to be sharded as units of their own, bottom-up; what is left is the root's. */
  shardingUnits(): readonly Module[];
  /** Bytes that activations (and their gradients) take in a training step. */
  activationBytes(shape: BatchShape): ActivationBytes;
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Names of tensors that are stored under another one's (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
  /** Number of token ids. */
  readonly vocabSize: number;
  /** Longest sequence. */
  readonly maxPositions: number;
}

/** One family of models. */
export interface ModelFamily {
  /** `model_type` in `config.json`. */
  readonly modelType: string;
  /**
   * Builds the model, without memory.
   *
   * @param hfConfig a parsed `config.json`
   * @throws {ConfigError} listing everything in it that is wrong, {@link UnsupportedError} for options not implemented
   */
  build(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm;
}
