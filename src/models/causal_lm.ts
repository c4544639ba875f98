/**
 * The contract of causal language models: their configuration, their blocks, and their tensors in a Hugging Face folder.
 *
 * @module
 */
import type { ParallelizePlan } from "../axes/parallelize.ts";
import type { Pipeline } from "../axes/pipeline.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Companions } from "../checkpoint/format/companions.ts";
import type { LoadHfOptions } from "../checkpoint/hugging_face/load.ts";
import type { SaveHfOptions } from "../checkpoint/hugging_face/save.ts";
import { type DirectoryTensor, type OtherFiles, plainDirectoryTensors } from "../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../device/device.ts";
import { eosIdsOf } from "../eos_ids.ts";
import { ArgumentError, InternalError, UnsupportedError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { LayerContext } from "../nn/attention.ts";
import { GenerationCache } from "../nn/cache.ts";
import type { HeadOutput } from "../nn/head.ts";
import { Module } from "../nn/module.ts";
import type { ModelSection } from "../nn/section.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";

/** Inputs of a causal language model. */
export interface CausalLmInputs extends Omit<LayerContext, "seqLength"> {
  /** Token ids, int32 [batch, seq]. */
  readonly inputIds: Tensor;
  /** The token that each position is to predict, int32 [batch, seq]; -100 counts for nothing. Already shifted. */
  readonly labels?: Tensor | undefined;
  /** Returns the logits of the last n positions only; 0 is all. @default 0 */
  readonly logitsToKeep?: number | undefined;
  /** With labels: returns the loss and the likeliest id of each token in place of their sum. @default false */
  readonly perToken?: boolean | undefined;
  /** Tokens of each row that are no padding, int32 [batch], which noise on embeddings depends on. @default all */
  readonly tokenCounts?: Tensor | undefined;
  /** The blocks that are computed. @default all, with what is before and behind them */
  readonly section?: ModelSection | undefined;
}

/** Source and destination of a model's weights. */
export interface ModelFiles {
  /** The Hugging Face folder that the model was opened from, if it was one. */
  readonly folder: string | undefined;
  /** Gives every parameter its value: read from the folder, or drawn. */
  load(options?: LoadHfOptions): Promise<void>;
  /** Writes a Hugging Face folder. Every rank must call it. */
  save(directory: string, options?: SaveHfOptions): Promise<void>;
}

/** Parts of a model besides its blocks. */
export interface ModelParts {
  /** Embeddings of tokens, and of positions if these are learned. */
  readonly embeddings: readonly Module[];
  /** Modules after the blocks: the final norm, and the head. */
  readonly tail: readonly Module[];
}

/** A causal language model: with labels it gives the loss, else the logits. */
export abstract class CausalLm extends Module<[inputs: CausalLmInputs], HeadOutput> {
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Number of token ids. */
  readonly vocabSize: number;
  /** Longest sequence. */
  readonly maxPositions: number;
  /** Names of tensors that are stored under another one's (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
  /** Hugging Face's names of the module classes; this library's names may be shortened in a bundle. */
  readonly classNames: ReadonlyMap<unknown, string>;
  /** Set by `openModel`. */
  files: ModelFiles | undefined;
  /** Small files that each save writes beside the weights, from the folder of `openModel`. */
  companions: Companions | undefined;
  /** Keys that a save overrides in `hfConfig`, e.g. the end-of-text token of another tokenizer. */
  configChanges: Readonly<Record<string, unknown>> | undefined;
  /** The ranks that share the positions of each row. Set by `parallelizeContext`. @default each rank computes all positions */
  positions: ProcessGroup | undefined;
  /** The stages that ranks have of the model. Set by `parallelizePipeline`. @default each rank has all of it */
  pipeline: Pipeline | undefined;
  #eosIds: readonly number[] | undefined;

  /** Takes the facts that are known before the parameters exist. */
  constructor(facts: Pick<CausalLm, "hfConfig" | "vocabSize" | "maxPositions" | "tiedNames" | "classNames">) {
    super();
    this.hfConfig = facts.hfConfig;
    this.vocabSize = facts.vocabSize;
    this.maxPositions = facts.maxPositions;
    this.tiedNames = facts.tiedNames;
    this.classNames = facts.classNames;
  }

  /**
   * A cache for texts that are continued token by token: pass it to each call as `pastKeyValues`, with the new tokens, inside
   * `noGrad`. The caller disposes it.
   *
   * @param maxLength largest number of tokens of a text: the first call allocates memory for them
   * @throws {ArgumentError} if the model has fewer positions
   */
  createCache(maxLength: number): GenerationCache {
    const { maxPositions } = this;
    if (Number.isSafeInteger(maxLength) && maxLength >= 0 && maxLength <= maxPositions) {
      return new GenerationCache(maxLength);
    }
    throw new ArgumentError(`Cannot keep ${maxLength} tokens of a text: the model has ${maxPositions} positions`);
  }

  /**
   * Default ids that end generated text: `eos_token_id` of the folder's `generation_config.json`, which `openModel` reads, else
   * of the config. Empty if neither has one.
   *
   * @throws {CheckpointError} if the config's are neither an id nor a list of ids
   */
  get eosIds(): readonly number[] {
    return this.#eosIds ??= eosIdsOf(this.hfConfig, "config.json");
  }

  set eosIds(ids: readonly number[]) {
    this.#eosIds = ids;
  }

  /**
   * NEFTune's `neftune_noise_alpha`: in training, uniform noise of at most alpha / √(tokens of the row × width) is added to the
   * embeddings, drawn by the place in a sample from the `random` of the inputs. @default no noise
   *
   * @throws {ArgumentError} if it is set to what is no positive number
   * @throws {UnsupportedError} if it is set for a model whose forward knows no noise
   */
  get neftuneNoiseAlpha(): number | undefined {
    return undefined;
  }

  set neftuneNoiseAlpha(alpha: number | undefined) {
    if (requireNoiseAlpha(alpha) === undefined) return;
    throw new UnsupportedError(
      `Cannot add noise to the embeddings of ${this.constructor.name}: its forward knows none. Leave neftuneNoiseAlpha out`,
    );
  }

  /** The transformer blocks, in the order of the forward. */
  abstract get layers(): readonly Module[];

  /** Modules before and after the blocks. */
  abstract get parts(): ModelParts;

  /** The model's class in `transformers`, e.g. `LlamaForCausalLM`. */
  get hfClass(): string | undefined {
    return this.classNames.get(this.constructor);
  }

  /** The device of the model's parameters. */
  get device(): Device {
    for (const { device } of this.parameters()) return device;
    throw new InternalError("a language model without parameters");
  }

  /**
   * Reads, or draws, this rank's shards of the weights. Every rank must call it, after `fullyShard` or `replicate`.
   *
   * @param options `broadcastFromRank0` if rank 0 reads for all: where files are slow, or exist on its host alone
   * @throws {ArgumentError} if the model was not opened by `openModel`
   * @throws {CheckpointError} {@link FileError} if the folder's weights do not fit or cannot be read
   */
  load(options?: LoadHfOptions): Promise<void> {
    return this.#requireFiles().load(options);
  }

  /**
   * Writes a Hugging Face folder, with the small files of the folder that the model came from: tokenizer, chat template,
   * generation settings, remote code and so on. Every rank must call it.
   *
   * @throws {ArgumentError} if the model was not opened by `openModel`
   * @throws {FileError} if a file cannot be written
   */
  save(directory: string, options?: SaveHfOptions): Promise<void> {
    return this.#requireFiles().save(directory, options);
  }

  /** True if the loss counts all tokens, as a loss that balances routers does, so that an attention mask must mark padding. */
  get countsPadding(): boolean {
    return false;
  }

  /**
   * How tensor parallelism cuts the model, by names and styles; some names may fit none of its layers. Undefined where the family cannot
   * be cut yet.
   */
  get tensorPlan(): ParallelizePlan | undefined {
    return undefined;
  }

  /** Names in files of the family that are read, and not written. */
  abstract get otherFiles(): OtherFiles;

  /** The tensors of a Hugging Face directory: overridden by families whose files are laid out otherwise than their parameters. */
  directoryTensors(): Iterable<DirectoryTensor> {
    return plainDirectoryTensors(this);
  }

  #requireFiles(): ModelFiles {
    if (this.files !== undefined) return this.files;
    throw new ArgumentError(
      "Cannot tell where the model's weights are: open it by openModel, or call initializeParameters or loadHfWeights, and " +
        "saveHfDirectory",
    );
  }
}

/** Refuses an alpha that is no positive number. */
export function requireNoiseAlpha(alpha: number | undefined): number | undefined {
  if (alpha === undefined || (isWithin(alpha, 0) && alpha > 0 && alpha < Infinity)) return alpha;
  throw new ArgumentError(`neftuneNoiseAlpha must be a positive number, got ${valueText(alpha)}`);
}
