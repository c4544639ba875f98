/**
 * The frame of a decoder: embedding, blocks, final norm, head. A family gives the parts, and the names of them.
 *
 * @module
 */
import { requireTensor } from "../ops/check.ts";
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { ParallelizePlan } from "../axes/parallelize.ts";
import type { OtherFiles } from "../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { type LayerContext, SelfAttention } from "../nn/attention.ts";
import { Dropout, dropOut, dropoutOf, type RandomContext } from "../nn/dropout.ts";
import { Embedding } from "../nn/embedding.ts";
import { addEmbeddingNoise } from "../nn/embedding_noise.ts";
import { Experts } from "../nn/experts.ts";
import { FeedForward, GatedFeedForward } from "../nn/feed_forward.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { GatedDeltaNet } from "../nn/gated_delta_net.ts";
import { type HeadOutput, LanguageModelHead } from "../nn/head.ts";
import { Indexer } from "../nn/indexer.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import { Linear } from "../nn/linear.ts";
import { MixtureOfExperts } from "../nn/mixture_of_experts.ts";
import type { Layer, Module } from "../nn/module.ts";
import { GatedRMSNorm, LayerNorm, RMSNorm } from "../nn/norm.ts";
import { PositionNumbers } from "../nn/positions.ts";
import type { Block } from "../nn/pre_norm_block.ts";
import { type FieldNames, RenamedModule } from "../nn/renamed.ts";
import { loadBalancingLoss, Router } from "../nn/router.ts";
import type { Carried } from "../nn/section.ts";
import { sameShape } from "../shape.ts";
import { scalar } from "../tensor/host.ts";
import { Tensor } from "../tensor/tensor.ts";
import { CausalLm, type CausalLmInputs, type ModelParts, requireNoiseAlpha } from "./causal_lm.ts";
import type { DecoderConfig } from "./decoder_config.ts";
import type { RouterBalance } from "./mixture_config.ts";
import type { FamilyTensorPlan } from "./tensor_plans.ts";

/** Hugging Face's names of the classes of a family's modules. */
export interface HfClasses {
  /** Prefix of class names, e.g. `Llama`. */
  readonly prefix: string;
  /** Class of the blocks. @default the prefix with `DecoderLayer` */
  readonly block?: string;
  /** Class of the whole model. @default the prefix with `ForCausalLM` */
  readonly whole?: string;
  /** Class of the body. @default the prefix with `Model` */
  readonly body?: string;
  /** Class of mixtures of experts. @default the prefix with `SparseMoeBlock` */
  readonly mixture?: string;
}

/** Factor on the token embedding. */
export interface EmbedScale {
  readonly factor: number;
  /**
   * True if the factor is rounded to the embedding's dtype before the product, which is then a part of transformers' embedding layer; else
   * the product is rounded once, behind the layer.
   */
  readonly isRounded: boolean;
}

/** The parts that differ from family to family. */
export interface DecoderParts {
  readonly hfClasses: HfClasses;
  /** The blocks, in the order of the forward. */
  readonly layers: readonly Block[];
  /** After the blocks. */
  readonly norm: Layer;
  /** After the lookup. @default nothing */
  readonly embedNorm?: Layer;
  /** Factor on the token embedding. @default 1 */
  readonly embedScale?: EmbedScale;
  /** Position embedding, added to the token embedding. @default none */
  readonly embedPositions?: Embedding;
  /** Dropout probability of the blocks' input in training. @default 0 */
  readonly embedDropout?: number;
  /** Before the head. @default nothing */
  readonly headTransform?: Module<[x: Tensor, context?: RandomContext], Tensor>;
  /** Balancing of routers, for which the blocks return the routers' logits. @default none */
  readonly balance?: RouterBalance | undefined;
  /** True if the head has a bias. @default false */
  readonly headBias?: boolean;
  /** Cuts of the blocks under tensor parallelism. @default the family cannot be cut yet */
  readonly tensorPlan?: FamilyTensorPlan;
  /** Divisor of the logits. @default 1 */
  readonly logitsScaling?: number;
  /** Bound c of the logits: a logit becomes c tanh(logit / c). @default none */
  readonly logitsSoftcap?: number | undefined;
  /** Names of tensors in files that other programs wrote. @default the names written here */
  readonly otherFiles?: Omit<OtherFiles, "bodyPrefix">;
  /** FQN parts of the fields: of the body, and of the whole model. */
  readonly names?: { readonly body?: FieldNames; readonly whole?: FieldNames };
}

/** Names of a model's inputs. */
const INPUTS: KnownKeys<CausalLmInputs> = {
  ...{ inputIds: true, labels: true, logitsToKeep: true, random: true, attentionMask: true, positionIds: true },
  ...{
    documentStarts: true,
    rowLength: true,
    pastKeyValues: true,
    selectedKeys: true,
    perToken: true,
    tokenCounts: true,
    section: true,
  },
};

/** Embedding, blocks, final norm: `model.` in most checkpoints. */
class DecoderBody extends RenamedModule<[inputs: CausalLmInputs], Carried> {
  readonly embedTokens: Embedding;
  readonly embedPositions: Embedding | undefined;
  readonly embedNorm: Layer | undefined;
  readonly embedDropout: Dropout | undefined;
  readonly layers: readonly Block[];
  readonly norm: Layer;
  /** NEFTune's alpha; undefined without noise. */
  noiseAlpha: number | undefined;
  readonly #embedScale: EmbedScale | undefined;
  readonly #maxPositions: number;
  readonly #positions: PositionNumbers;

  constructor(device: Device, config: DecoderConfig, parts: DecoderParts) {
    super(parts.names?.body);
    const { vocabSize, hiddenSize, init, paddingIdx, maxPositions } = config;
    const options = paddingIdx === undefined ? { init } : { init, paddingIdx };
    this.embedTokens = new Embedding(device, vocabSize, hiddenSize, options);
    this.embedPositions = parts.embedPositions;
    this.embedNorm = parts.embedNorm;
    this.embedDropout = dropoutOf(parts.embedDropout);
    this.layers = parts.layers;
    this.norm = parts.norm;
    this.#embedScale = parts.embedScale;
    this.#maxPositions = maxPositions;
    this.#positions = new PositionNumbers(device, maxPositions);
  }

  /** The outputs of the blocks, after the final norm where the last block is among them. */
  forward(inputs: CausalLmInputs): Carried {
    const { inputIds, attentionMask, documentStarts, rowLength, pastKeyValues, random } = inputs;
    const [batch, seq] = inputIds.shape;
    const past = pastKeyValues === undefined ? 0 : pastKeyValues.length;
    const isMatrix = batch !== undefined && seq !== undefined && inputIds.ndim === 2;
    if (
      !isMatrix ||
      (past + (rowLength ?? seq) > this.#maxPositions && (inputs.positionIds === undefined || rowLength !== undefined))
    ) {
      const [shape, left] = [inputIds.shape.join(", "), this.#maxPositions - past];
      const why = past === 0 ? "" : `, as ${past} of ${this.#maxPositions} positions are in the cache`;
      throw new ArgumentError(
        `Cannot run on ids [${shape}]: they must be [batch, seq] with seq at most ${left}${why}`,
      );
    }
    if (attentionMask !== undefined && !sameShape(attentionMask.shape, [batch, past + seq])) {
      const [got, wanted] = [attentionMask.shape.join(", "), [batch, past + seq].join(", ")];
      throw new ArgumentError(
        `Cannot use an attentionMask [${got}]: it must be [${wanted}], an element for each token`,
      );
    }
    if (documentStarts !== undefined) requireDocuments(documentStarts, [batch, seq], pastKeyValues);
    const positionIds = inputs.positionIds ??
      (documentStarts === undefined ? undefined : this.#positionsWithin(documentStarts, seq));
    const places = { positionIds, documentStarts, rowLength, seqLength: seq };
    let context: LayerContext = { attentionMask, ...places, pastKeyValues, random };
    const { begin = 0, end = this.layers.length, carried } = inputs.section ?? {};
    let hidden = carried?.hidden ?? this.#enter(inputs, context, past);
    const routerLogits = [...carried?.routerLogits ?? []];
    if (carried?.selectedKeys !== undefined) context = { ...context, selectedKeys: carried.selectedKeys };
    for (const layer of this.layers.slice(begin, end)) {
      const output = layer.call(hidden, context);
      if (output instanceof Tensor) {
        hidden = output;
        continue;
      }
      hidden = output.hidden;
      if (output.routerLogits !== undefined) routerLogits.push(output.routerLogits);
      if (output.selectedKeys !== undefined) context = { ...context, selectedKeys: output.selectedKeys };
    }
    // Sections of one forward share the place in the cache; what sends rows through all of them moves it.
    if (inputs.section === undefined) pastKeyValues?.advance(seq);
    if (end < this.layers.length) return { hidden, routerLogits, selectedKeys: context.selectedKeys };
    return { hidden: this.norm.call(hidden), routerLogits };
  }

  /** The input of the first block, [batch, seq, hidden]. */
  #enter(inputs: CausalLmInputs, context: LayerContext, past: number): Tensor {
    let hidden = this.#embed(inputs);
    if (this.embedPositions !== undefined) {
      const positions = context.positionIds ?? this.#positions.of(past, at(inputs.inputIds.shape, 1, "size of dim"));
      hidden = hidden.add(this.embedPositions.call(positions));
    }
    if (this.embedNorm !== undefined) hidden = this.embedNorm.call(hidden);
    return dropOut(this.embedDropout, hidden, context);
  }

  /** The name of the blocks below the body. */
  get blocksName(): string {
    return this.nameOf("layers");
  }

  /** The embeddings of tokens, in training with noise: on what transformers' embedding layer gives. */
  #embed({ inputIds, tokenCounts, random, rowLength }: CausalLmInputs): Tensor {
    const { noiseAlpha: alpha } = this;
    const scale = this.#embedScale;
    const embedded = this.embedTokens.call(inputIds);
    if (!this.training || alpha === undefined) return scaledEmbedding(embedded, scale);
    const withNoise = (rows: Tensor): Tensor =>
      addEmbeddingNoise(this.embedTokens, rows, { alpha, tokenCounts, random, rowLength });
    return scale?.isRounded === false
      ? scaledEmbedding(withNoise(embedded), scale)
      : withNoise(scaledEmbedding(embedded, scale));
  }

  /** Positions that count from 0 in each document. */
  #positionsWithin(documentStarts: Tensor, seq: number): Tensor {
    // Floats hold these integers, as rows have fewer than 2^24 tokens.
    return noGrad(() => this.#positions.of(0, seq).to(float32).sub(documentStarts.to(float32)).to(int32));
  }
}

/** The embedding times its factor. */
function scaledEmbedding(embedded: Tensor, scale: EmbedScale | undefined): Tensor {
  if (scale === undefined) return embedded;
  if (!scale.isRounded) return embedded.mul(scale.factor);
  using factor = scalar(embedded, scale.factor, "mul");
  return embedded.mul(factor);
}

/** Refuses beginnings of documents that are not a number for each token, or that come with a cache. */
function requireDocuments({ dtype, shape }: Tensor, tokens: readonly number[], cache: unknown): void {
  if (dtype !== int32 || !sameShape(shape, tokens)) {
    const [got, wanted] = [`${dtype.name} [${shape.join(", ")}]`, `int32 [${tokens.join(", ")}]`];
    throw new ArgumentError(
      `Cannot use documentStarts ${got}: they must be ${wanted}, for each token the place of its document's first token`,
    );
  }
  if (cache === undefined) return;
  throw new ArgumentError(
    "Cannot continue texts of several documents in a row: give documentStarts without pastKeyValues, or a row for each document",
  );
}

/** A decoder with a language-model head. */
export abstract class DecoderForCausalLm extends CausalLm {
  readonly model: DecoderBody;
  readonly headTransform: Module<[x: Tensor, context?: RandomContext], Tensor> | undefined;
  readonly lmHead: LanguageModelHead;
  readonly #names: FieldNames;
  readonly #balance: RouterBalance | undefined;
  readonly #otherFiles: DecoderParts["otherFiles"];
  readonly #tensorPlan: FamilyTensorPlan | undefined;

  /** Makes embedding and head, without memory, and names the tree. */
  constructor(
    device: Device,
    config: DecoderConfig,
    hfConfig: Readonly<Record<string, unknown>>,
    parts: DecoderParts,
  ) {
    const { hiddenSize, vocabSize, maxPositions, tieWordEmbeddings: tied, init } = config;
    const tiedNames = new Map<string, string>();
    const classNames = classNamesOf(parts);
    classNames.set(new.target, parts.hfClasses.whole ?? `${parts.hfClasses.prefix}ForCausalLM`);
    super({ hfConfig, vocabSize, maxPositions, tiedNames, classNames });
    this.#names = parts.names?.whole ?? {};
    this.#balance = parts.balance;
    this.#otherFiles = parts.otherFiles;
    this.#tensorPlan = parts.tensorPlan;
    this.model = new DecoderBody(device, config, parts);
    this.headTransform = parts.headTransform;
    const { weight } = this.model.embedTokens;
    const { headBias: bias = false, logitsScaling = 1, logitsSoftcap: softcap } = parts;
    const head = { bias, logitsScaling, softcap };
    this.lmHead = new LanguageModelHead(device, hiddenSize, vocabSize, tied ? weight : init, head);
    this.nameTree();
    if (tied) tiedNames.set(`${this.nameOf("lmHead")}.weight`, weight.fqn);
  }

  get layers(): readonly Module[] {
    return this.model.layers;
  }

  override get countsPadding(): boolean {
    return this.#balance !== undefined;
  }

  override get neftuneNoiseAlpha(): number | undefined {
    return this.model.noiseAlpha;
  }

  override set neftuneNoiseAlpha(alpha: number | undefined) {
    this.model.noiseAlpha = requireNoiseAlpha(alpha);
  }

  get otherFiles(): OtherFiles {
    return { bodyPrefix: `${this.nameOf("model")}.`, ...this.#otherFiles };
  }

  get parts(): ModelParts {
    const { embedTokens, embedPositions, norm } = this.model;
    return {
      embeddings: [embedTokens, embedPositions].filter((module) => module !== undefined),
      tail: [norm, this.headTransform, this.lmHead].filter((module) => module !== undefined),
    };
  }

  override get tensorPlan(): ParallelizePlan | undefined {
    if (this.#tensorPlan === undefined) return undefined;
    const { blocks, cutsEmbedding = false } = this.#tensorPlan;
    const [{ fqn: embedding = "" }, { fqn: head = "" }] = [this.model.embedTokens, this.lmHead];
    const prefix = `${this.nameOf("model")}.${this.model.blocksName}.*`;
    const plan = Object.entries(blocks).map(([name, style]) => [`${prefix}.${name}`, style] as const);
    return {
      ...cutsEmbedding ? { [embedding]: "embedding_rowwise" } : {},
      ...Object.fromEntries(plan),
      [head]: "colwise_gather_output",
    };
  }

  forward(inputs: CausalLmInputs): HeadOutput {
    requireKnownKeys("call a model", inputs, INPUTS);
    requireTensor("model.call", inputs.inputIds, "a tensor of ids, as in model.call({ inputIds })");
    const carried = this.model.call(inputs);
    if (inputs.section !== undefined && inputs.section.end < this.layers.length) return { carried };
    const { hidden, routerLogits } = carried;
    const transformed = this.headTransform === undefined ? hidden : this.headTransform.call(hidden, inputs);
    const output = this.lmHead.call(transformed, inputs.labels, inputs.logitsToKeep, inputs.perToken);
    if (this.#balance === undefined || routerLogits.length === 0 || output.perToken !== undefined) return output;
    return balanced(output, routerLogits, inputs, this.#balance);
  }

  protected override nameOf(field: string): string {
    return this.#names[field] ?? super.nameOf(field);
  }
}

/** Adds the loss that balances the routers, times the number of tokens with labels, as the loss is a sum over these. */
function balanced(
  output: HeadOutput,
  routerLogits: readonly Tensor[],
  { inputIds, labels, attentionMask }: CausalLmInputs,
  { topK, coefficient }: RouterBalance,
): HeadOutput {
  const seq = at(inputIds.shape, 1, "size of dim");
  const mask = attentionMask?.narrow(1, at(attentionMask.shape, 1, "size of dim") - seq, seq).reshape([inputIds.numel]);
  const auxLoss = loadBalancingLoss(routerLogits, topK, mask);
  if (output.loss === undefined || labels === undefined) return { ...output, auxLoss };
  const tokens = labels.ne(IGNORE_INDEX).to(float32).sum();
  return { ...output, auxLoss, loss: output.loss.add(auxLoss.mul(tokens).mul(coefficient)) };
}

/** Hugging Face's names of the classes of a decoder's modules. */
function classNamesOf({ hfClasses: { prefix, block, body, mixture }, layers }: DecoderParts): Map<unknown, string> {
  return new Map<unknown, string>([
    [Embedding, "Embedding"],
    [Dropout, "Dropout"],
    [Linear, "Linear"],
    [LayerNorm, "LayerNorm"],
    [RMSNorm, `${prefix}RMSNorm`],
    [GatedRMSNorm, `${prefix}RMSNormGated`],
    [SelfAttention, `${prefix}Attention`],
    [LatentAttention, `${prefix}Attention`],
    [Indexer, `${prefix}Indexer`],
    [GatedDeltaNet, `${prefix}GatedDeltaNet`],
    [FeedForward, `${prefix}MLP`],
    [GatedFeedForward, `${prefix}MLP`],
    [MixtureOfExperts, mixture ?? `${prefix}SparseMoeBlock`],
    [Router, `${prefix}TopKRouter`],
    [Experts, `${prefix}Experts`],
    [DecoderBody, body ?? `${prefix}Model`],
    ...layers.map(({ constructor }) => [constructor, block ?? `${prefix}DecoderLayer`] as const),
  ]);
}

/** The blocks of a decoder. */
export function blocksOf(
  { numLayers }: DecoderConfig,
  make: (layer: number) => Block,
): readonly Block[] {
  return Array.from({ length: numLayers }, (_, i) => make(i));
}
