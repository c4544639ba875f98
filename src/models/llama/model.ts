/**
 * Llama (Touvron et al. 2023; transformers `modeling_llama.py`): pre-norm blocks of grouped-query attention with rotary
 * positions and SwiGLU. Field names in snake_case are the checkpoint's names. The model knows nothing of ranks.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { ArgumentError } from "../../errors.ts";
import { attention, rope, swiglu } from "../../nn/functional.ts";
import { CacheSlot, KeyValues } from "../../nn/cache.ts";
import { Embedding } from "../../nn/embedding.ts";
import { type HeadOutput, LanguageModelHead } from "../../nn/head.ts";
import { Linear } from "../../nn/linear.ts";
import { Module } from "../../nn/module.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Init } from "../../tensor/parameter.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { CausalLm, type CausalLmInputs, type ModelParts } from "../causal_lm.ts";
import type { LlamaConfig } from "./config.ts";

/** What every block of one forward is given besides the hidden states. */
interface Positions extends Pick<CausalLmInputs, "positionIds" | "attentionMask" | "pastKeyValues"> {
  readonly cos: Tensor;
  readonly sin: Tensor;
}

function normal(config: LlamaConfig): Init {
  return { kind: "normal", mean: 0, std: config.initializerRange };
}

/** Grouped-query attention with rotary positions. */
class LlamaAttention extends Module<[x: Tensor, positions: Positions], Tensor> {
  readonly qProj: Linear;
  readonly kProj: Linear;
  readonly vProj: Linear;
  readonly oProj: Linear;
  readonly #config: LlamaConfig;
  readonly #past = new CacheSlot((cache) => new KeyValues(cache));

  constructor(device: Device, config: LlamaConfig) {
    super();
    const { hiddenSize, numHeads, numKvHeads, headDim } = config;
    const options = { bias: config.attentionBias, init: normal(config) };
    this.qProj = new Linear(device, hiddenSize, numHeads * headDim, options);
    this.kProj = new Linear(device, hiddenSize, numKvHeads * headDim, options);
    this.vProj = new Linear(device, hiddenSize, numKvHeads * headDim, options);
    this.oProj = new Linear(device, numHeads * headDim, hiddenSize, options);
    this.#config = config;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, { cos, sin, positionIds, attentionMask, pastKeyValues }: Positions): Tensor {
    const { numHeads: heads, numKvHeads: kvHeads, headDim } = this.#config;
    const q = rope(this.qProj.call(x), cos, sin, headDim, positionIds);
    const own = [rope(this.kProj.call(x), cos, sin, headDim, positionIds), this.vProj.call(x)] as const;
    const [k, v] = pastKeyValues === undefined ? own : this.#past.of(pastKeyValues).update(...own);
    const scale = 1 / Math.sqrt(headDim);
    return this.oProj.call(attention(q, k, v, { heads, kvHeads, causal: true, scale }, attentionMask));
  }
}

/** SwiGLU feed-forward. */
class LlamaMlp extends Module<[x: Tensor], Tensor> {
  readonly gateProj: Linear;
  readonly upProj: Linear;
  readonly downProj: Linear;

  constructor(device: Device, config: LlamaConfig) {
    super();
    const { hiddenSize, intermediateSize } = config;
    const options = { bias: config.mlpBias, init: normal(config) };
    this.gateProj = new Linear(device, hiddenSize, intermediateSize, options);
    this.upProj = new Linear(device, hiddenSize, intermediateSize, options);
    this.downProj = new Linear(device, intermediateSize, hiddenSize, options);
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor): Tensor {
    return this.downProj.call(swiglu(this.gateProj.call(x), this.upProj.call(x)));
  }
}

/** One block: attention and feed-forward, each after a norm and around a residual. */
export class LlamaDecoderLayer extends Module<[x: Tensor, positions: Positions], Tensor> {
  readonly selfAttn: LlamaAttention;
  readonly mlp: LlamaMlp;
  readonly inputLayernorm: RMSNorm;
  readonly postAttentionLayernorm: RMSNorm;

  constructor(device: Device, config: LlamaConfig) {
    super();
    this.selfAttn = new LlamaAttention(device, config);
    this.mlp = new LlamaMlp(device, config);
    this.inputLayernorm = new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    this.postAttentionLayernorm = new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, positions: Positions): Tensor {
    const attended = x.add(this.selfAttn.call(this.inputLayernorm.call(x), positions));
    return attended.add(this.mlp.call(this.postAttentionLayernorm.call(attended)));
  }
}

/** Embedding, blocks, final norm: `model.` in checkpoints. */
class LlamaModel extends Module<[inputs: CausalLmInputs], Tensor> {
  readonly embedTokens: Embedding;
  readonly layers: readonly LlamaDecoderLayer[];
  readonly norm: RMSNorm;
  readonly #rotary: RotaryTables;
  readonly #maxPositions: number;

  constructor(device: Device, config: LlamaConfig) {
    super();
    const { vocabSize, hiddenSize, padTokenId, numLayers, maxPositions } = config;
    const options = { init: normal(config), ...padTokenId >= 0 ? { paddingIdx: padTokenId } : {} };
    this.embedTokens = new Embedding(device, vocabSize, hiddenSize, options);
    this.layers = Array.from({ length: numLayers }, () => new LlamaDecoderLayer(device, config));
    this.norm = new RMSNorm(device, hiddenSize, config.rmsNormEps);
    const { headDim: dim, ropeTheta: theta, ropeScaling: scaling } = config;
    this.#rotary = new RotaryTables(device, { dim, theta, scaling, maxPositions });
    this.#maxPositions = maxPositions;
  }

  /** → hidden states [batch, seq, hidden] */
  forward({ inputIds, attentionMask, positionIds, pastKeyValues }: CausalLmInputs): Tensor {
    const [, seq = 0] = inputIds.shape;
    const past = pastKeyValues === undefined ? 0 : pastKeyValues.length;
    if (inputIds.ndim !== 2 || (positionIds === undefined && past + seq > this.#maxPositions)) {
      const [shape, left] = [inputIds.shape.join(", "), this.#maxPositions - past];
      const why = past === 0 ? "" : `, as ${past} of ${this.#maxPositions} positions are in the cache`;
      throw new ArgumentError(
        `Cannot run on ids [${shape}]: they must be [batch, seq] with seq at most ${left}${why}`,
      );
    }
    const [cos, sin] = positionIds === undefined ? this.#rotary.rows(past, seq) : this.#rotary.upTo(this.#maxPositions);
    const positions = { cos, sin, positionIds, attentionMask, pastKeyValues };
    let hidden = this.embedTokens.call(inputIds);
    for (const layer of this.layers) hidden = layer.call(hidden, positions);
    pastKeyValues?.advance(seq);
    return this.norm.call(hidden);
  }
}

/** Llama with a language-model head. */
export class LlamaForCausalLm extends CausalLm {
  readonly model: LlamaModel;
  readonly lmHead: LanguageModelHead;

  constructor(device: Device, config: LlamaConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { vocabSize, maxPositions, tieWordEmbeddings: tied } = config;
    const tiedNames = new Map(tied ? [["lm_head.weight", "model.embed_tokens.weight"]] : []);
    super({ hfConfig, vocabSize, maxPositions, tiedNames, classNames: CLASS_NAMES });
    this.model = new LlamaModel(device, config);
    const weight = tied ? this.model.embedTokens.weight : normal(config);
    this.lmHead = new LanguageModelHead(device, config.hiddenSize, vocabSize, weight);
    this.nameTree();
  }

  get layers(): readonly Module[] {
    return this.model.layers;
  }

  get parts(): ModelParts {
    return { embeddings: [this.model.embedTokens], tail: [this.model.norm, this.lmHead] };
  }

  forward(inputs: CausalLmInputs): HeadOutput {
    return this.lmHead.call(this.model.call(inputs), inputs.labels, inputs.logitsToKeep);
  }
}

/** Hugging Face's names of the classes here. */
const CLASS_NAMES: ReadonlyMap<unknown, string> = new Map<unknown, string>([
  [LlamaDecoderLayer, "LlamaDecoderLayer"],
  [LlamaAttention, "LlamaAttention"],
  [LlamaMlp, "LlamaMLP"],
  [LlamaModel, "LlamaModel"],
  [LlamaForCausalLm, "LlamaForCausalLM"],
  [RMSNorm, "LlamaRMSNorm"],
  [Embedding, "Embedding"],
  [Linear, "Linear"],
]);
