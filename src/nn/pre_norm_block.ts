/**
 * The usual block of a decoder: a mixer of tokens and a feed-forward, each after a norm and around a residual.
 *
 * @module
 */
import { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
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
  readonly mlp: Module<[x: Tensor], BlockOutput>;
  /** Before the mixer of tokens; none in some first blocks. */
  readonly inputLayernorm: Layer | undefined;
  /** Before the feed-forward. */
  readonly postAttentionLayernorm: Layer;
  /** Names of the fields. */
  readonly names?: Names;
}

/** `y = x + selfAttn(norm(x))`, then `y + mlp(norm(y))`. */
export class PreNormBlock extends RenamedModule<[x: Tensor, context: LayerContext], BlockOutput> {
  readonly selfAttn: ContextLayer;
  readonly mlp: Module<[x: Tensor], BlockOutput>;
  readonly inputLayernorm: Layer | undefined;
  readonly postAttentionLayernorm: Layer;

  /** Takes the parts. */
  constructor({ selfAttn, mlp, inputLayernorm, postAttentionLayernorm, names }: PreNormParts) {
    super(names);
    this.selfAttn = selfAttn;
    this.mlp = mlp;
    this.inputLayernorm = inputLayernorm;
    this.postAttentionLayernorm = postAttentionLayernorm;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): BlockOutput {
    const normed = this.inputLayernorm === undefined ? x : this.inputLayernorm.call(x);
    const mixed = x.add(this.selfAttn.call(normed, context));
    const output = this.mlp.call(this.postAttentionLayernorm.call(mixed));
    if (output instanceof Tensor) return mixed.add(output);
    return { ...output, hidden: mixed.add(output.hidden) };
  }
}
