/**
 * A block of a decoder with norms behind its mixer of tokens and its feed-forward, and in some families before them too.
 *
 * @module
 */
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext, SelfAttention } from "./attention.ts";
import type { GatedFeedForward } from "./feed_forward.ts";
import type { Layer } from "./module.ts";
import { type FieldNames, RenamedModule } from "./renamed.ts";

/** Parts of a block. */
export interface PostNormParts {
  readonly selfAttn: SelfAttention;
  readonly mlp: GatedFeedForward;
  /** Before the attention. @default nothing */
  readonly inputLayernorm?: Layer;
  /** Behind the attention. */
  readonly postAttentionLayernorm: Layer;
  /** Before the feed-forward. @default nothing */
  readonly preFeedforwardLayernorm?: Layer;
  /** Behind the feed-forward. */
  readonly postFeedforwardLayernorm: Layer;
  /** Names of the fields in FQNs. */
  readonly names?: FieldNames;
}

/** `y = x + norm(selfAttn(norm(x)))`, then `y + norm(mlp(norm(y)))`. */
export class PostNormBlock extends RenamedModule<[x: Tensor, context: LayerContext], Tensor> {
  readonly selfAttn: SelfAttention;
  readonly mlp: GatedFeedForward;
  readonly inputLayernorm: Layer | undefined;
  readonly postAttentionLayernorm: Layer;
  readonly preFeedforwardLayernorm: Layer | undefined;
  readonly postFeedforwardLayernorm: Layer;

  /** Takes the parts. */
  constructor(parts: PostNormParts) {
    super(parts.names);
    this.selfAttn = parts.selfAttn;
    this.mlp = parts.mlp;
    this.inputLayernorm = parts.inputLayernorm;
    this.postAttentionLayernorm = parts.postAttentionLayernorm;
    this.preFeedforwardLayernorm = parts.preFeedforwardLayernorm;
    this.postFeedforwardLayernorm = parts.postFeedforwardLayernorm;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const attended = this.selfAttn.call(normed(this.inputLayernorm, x), context);
    const mixed = x.add(this.postAttentionLayernorm.call(attended));
    const fed = this.mlp.call(normed(this.preFeedforwardLayernorm, mixed), context);
    return mixed.add(this.postFeedforwardLayernorm.call(fed));
  }
}

function normed(norm: Layer | undefined, x: Tensor): Tensor {
  return norm === undefined ? x : norm.call(x);
}
