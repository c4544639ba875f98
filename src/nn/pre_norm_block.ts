/**
 * The usual block of a decoder: a mixer of tokens and a feed-forward, each after a norm and around a residual.
 *
 * @module
 */
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import type { Layer, Module } from "./module.ts";
import { type Names, RenamedModule } from "./renamed.ts";

/** A block of a decoder, or what in it lets tokens see each other. */
export type ContextLayer = Module<[x: Tensor, context: LayerContext], Tensor>;

/** What a block is made of. */
export interface PreNormParts {
  readonly selfAttn: ContextLayer;
  readonly mlp: Layer;
  /** Before the mixer of tokens; none in some first blocks. */
  readonly inputLayernorm: Layer | undefined;
  /** Before the feed-forward. */
  readonly postAttentionLayernorm: Layer;
  /** Names of the fields. */
  readonly names?: Names;
}

/** `y = x + selfAttn(norm(x))`, then `y + mlp(norm(y))`. */
export class PreNormBlock extends RenamedModule<[x: Tensor, context: LayerContext], Tensor> {
  readonly selfAttn: ContextLayer;
  readonly mlp: Layer;
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
  forward(x: Tensor, context: LayerContext): Tensor {
    const normed = this.inputLayernorm === undefined ? x : this.inputLayernorm.call(x);
    const mixed = x.add(this.selfAttn.call(normed, context));
    return mixed.add(this.mlp.call(this.postAttentionLayernorm.call(mixed)));
  }
}
