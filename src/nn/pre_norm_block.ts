/**
 * The usual block of a decoder: a mixer of tokens and a feed-forward, each after a norm and around a residual.
 *
 * @module
 */
import { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { type Dropout, dropOut, dropoutOf } from "./dropout.ts";
import type { Layer, Module } from "./module.ts";
import { type FieldNames, RenamedModule } from "./renamed.ts";

/** Output of a token mixer whose selection of keys later layers share. */
export interface Selected {
  /** [batch, seq, hidden] */
  readonly hidden: Tensor;
  /** uint8 [batch, seq, keys]; 0 hides a key */
  readonly selectedKeys: Tensor;
}

/** Output of a token mixer: hidden states [batch, seq, hidden], alone in most. */
export type ContextOutput = Tensor | Selected;

/** The token mixer of a block: an attention, a convolution or a recurrence over the sequence. */
export type ContextLayer = Module<[x: Tensor, context: LayerContext], ContextOutput>;

/** Output of a feed-forward with a router that is balanced. */
export interface Routed {
  /** [batch, seq, hidden] */
  readonly hidden: Tensor;
  /** [batch * seq, experts] */
  readonly routerLogits: Tensor;
}

/** Output of a feed-forward: hidden states [batch, seq, hidden], alone in most. */
export type FeedForwardOutput = Tensor | Routed;

/** Output of a block: hidden states [batch, seq, hidden], alone in most. */
export type BlockOutput = Tensor | (Pick<Routed, "hidden"> & Partial<Routed> & Partial<Selected>);

/** A block of a decoder. */
export type Block = Module<[x: Tensor, context: LayerContext], BlockOutput>;

/** Parts of a block. */
export interface PreNormParts {
  readonly selfAttn: ContextLayer;
  readonly mlp: Module<[x: Tensor, context?: LayerContext], FeedForwardOutput>;
  /** Before the mixer of tokens; none in some first blocks. */
  readonly inputLayernorm: Layer | undefined;
  /** Before the feed-forward. */
  readonly postAttentionLayernorm: Layer;
  /** Dropout probability of the token mixer's output in training. @default 0 */
  readonly attnDropout?: number;
  /** Dropout probability of the feed-forward's output in training. @default 0 */
  readonly mlpDropout?: number;
  /** Factor on both outputs before they are added to the residual. @default 1 */
  readonly residualScale?: number;
  /** Names of the fields in FQNs. */
  readonly names?: FieldNames;
}

/** `y = x + selfAttn(norm(x))`, then `y + mlp(norm(y))`. */
export class PreNormBlock extends RenamedModule<[x: Tensor, context: LayerContext], BlockOutput> {
  readonly selfAttn: ContextLayer;
  readonly mlp: Module<[x: Tensor, context?: LayerContext], FeedForwardOutput>;
  readonly inputLayernorm: Layer | undefined;
  readonly postAttentionLayernorm: Layer;
  readonly residAttnDropout: Dropout | undefined;
  readonly residMlpDropout: Dropout | undefined;
  readonly #residualScale: number;

  /** Takes the parts. */
  constructor(parts: PreNormParts) {
    super(parts.names);
    this.selfAttn = parts.selfAttn;
    this.mlp = parts.mlp;
    this.inputLayernorm = parts.inputLayernorm;
    this.postAttentionLayernorm = parts.postAttentionLayernorm;
    this.residAttnDropout = dropoutOf(parts.attnDropout);
    this.residMlpDropout = dropoutOf(parts.mlpDropout);
    this.#residualScale = parts.residualScale ?? 1;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): BlockOutput {
    const normed = this.inputLayernorm === undefined ? x : this.inputLayernorm.call(x);
    const { hidden: attended, ...selection } = asRecord(this.selfAttn.call(normed, context));
    const mixed = x.add(this.#scaled(dropOut(this.residAttnDropout, attended, context)));
    const { hidden: fed, ...routing } = asRecord(this.mlp.call(this.postAttentionLayernorm.call(mixed), context));
    const hidden = mixed.add(this.#scaled(dropOut(this.residMlpDropout, fed, context)));
    return "selectedKeys" in selection || "routerLogits" in routing ? { hidden, ...selection, ...routing } : hidden;
  }

  #scaled(output: Tensor): Tensor {
    return this.#residualScale === 1 ? output : output.mul(this.#residualScale);
  }
}

/** An output as a record: hidden states that came alone become its `hidden`. */
function asRecord<Output extends { readonly hidden: Tensor }>(
  output: Tensor | Output,
): Output | { readonly hidden: Tensor } {
  return output instanceof Tensor ? { hidden: output } : output;
}
