/**
 * The usual block of a decoder: a mixer of tokens and a feed-forward, each after a norm and around a residual.
 *
 * @module
 */
import { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { type Dropout, dropOut, dropoutOf } from "./dropout.ts";
import type { Layer, Module } from "./module.ts";
import { type Names, RenamedModule } from "./renamed.ts";

/** What in a block lets tokens see each other. */
export type ContextLayer = Module<[x: Tensor, context: LayerContext], Tensor>;

/** What a block gives whose router is to be balanced. */
export interface Routed {
  /** [batch, seq, hidden] */
  readonly hidden: Tensor;
  /** [batch * seq, experts] */
  readonly routerLogits: Tensor;
}

/** What a block gives: hidden states [batch, seq, hidden], alone in most. */
export type BlockOutput = Tensor | Routed;

/** A block of a decoder. */
export type Block = Module<[x: Tensor, context: LayerContext], BlockOutput>;

/** What a block is made of. */
export interface PreNormParts {
  readonly selfAttn: ContextLayer;
  readonly mlp: Module<[x: Tensor, context?: LayerContext], BlockOutput>;
  /** Before the mixer of tokens; none in some first blocks. */
  readonly inputLayernorm: Layer | undefined;
  /** Before the feed-forward. */
  readonly postAttentionLayernorm: Layer;
  /** Probability that an element of what the mixer of tokens gives becomes zero in training. @default 0 */
  readonly attnDropout?: number;
  /** The same of what the feed-forward gives. @default 0 */
  readonly mlpDropout?: number;
  /** Names of the fields. */
  readonly names?: Names;
}

/** `y = x + selfAttn(norm(x))`, then `y + mlp(norm(y))`. */
export class PreNormBlock extends RenamedModule<[x: Tensor, context: LayerContext], BlockOutput> {
  readonly selfAttn: ContextLayer;
  readonly mlp: Module<[x: Tensor, context?: LayerContext], BlockOutput>;
  readonly inputLayernorm: Layer | undefined;
  readonly postAttentionLayernorm: Layer;
  readonly residAttnDropout: Dropout | undefined;
  readonly residMlpDropout: Dropout | undefined;

  /** Takes the parts. */
  constructor(parts: PreNormParts) {
    super(parts.names);
    this.selfAttn = parts.selfAttn;
    this.mlp = parts.mlp;
    this.inputLayernorm = parts.inputLayernorm;
    this.postAttentionLayernorm = parts.postAttentionLayernorm;
    this.residAttnDropout = dropoutOf(parts.attnDropout);
    this.residMlpDropout = dropoutOf(parts.mlpDropout);
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): BlockOutput {
    const normed = this.inputLayernorm === undefined ? x : this.inputLayernorm.call(x);
    const mixed = x.add(dropOut(this.residAttnDropout, this.selfAttn.call(normed, context), context));
    const output = this.mlp.call(this.postAttentionLayernorm.call(mixed), context);
    if (output instanceof Tensor) return mixed.add(dropOut(this.residMlpDropout, output, context));
    return { ...output, hidden: mixed.add(dropOut(this.residMlpDropout, output.hidden, context)) };
  }
}
