/**
 * Multi-head latent attention (MLA, DeepSeek-AI 2024): keys and values of all heads are made of one narrow row a token, which is
 * all that a cache keeps, besides a part of the keys that is turned and that all heads share.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import type { Init } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { CacheSlot, KeyValues } from "./cache.ts";
import { attentionDropout } from "./dropout.ts";
import { attention, cat, rope } from "./functional.ts";
import { Indexer, type IndexerOptions } from "./indexer.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";
import { RMSNorm } from "./norm.ts";
import type { RotaryTables } from "./rotary.ts";

/** Epsilon of the norms of latent rows, whatever the model's other norms have. */
const LATENT_EPS = 1e-6;

/** What a latent attention is made of. */
export interface LatentAttentionOptions {
  readonly hiddenSize: number;
  readonly numHeads: number;
  /** Width of the rows that queries are made of. @default they are made of the hidden states */
  readonly queryRank: number | undefined;
  /** Width of the rows that keys and values are made of. */
  readonly keyValueRank: number;
  /** Elements of a head's queries and keys that know no positions. */
  readonly nopeDim: number;
  /** Elements of a head's queries and keys that are turned, behind the others. */
  readonly ropeDim: number;
  /** Elements of a head's values. */
  readonly valueDim: number;
  /** Factor on q·k. */
  readonly scale: number;
  readonly rotary: RotaryTables;
  /** Whether neighbors are turned together, instead of elements of the first half with those of the second. */
  readonly interleaved: boolean;
  /** Chooses the keys that each query sees, by the rows that queries are made of. @default all before it */
  readonly indexer?: IndexerOptions;
  /** How weights begin; biases begin as zeros. */
  readonly init: Init;
  /** Whether the projections to latent rows, and that of the output, have a bias. */
  readonly bias: boolean;
  /** Probability that a token does not hear another one in training. @default 0 */
  readonly attentionDropout?: number;
}

/** Queries of all heads, and which keys they see: uint8 [batch, keys] or [batch, seq, keys]; all before them where there is none. */
type Queries = readonly [queries: Tensor, mask: Tensor | undefined];

/** Multi-head latent attention. */
export class LatentAttention extends Module<[x: Tensor, context: LayerContext], Tensor> {
  readonly qProj: Linear | undefined;
  readonly qAProj: Linear | undefined;
  readonly qALayernorm: RMSNorm | undefined;
  readonly qBProj: Linear | undefined;
  readonly kvAProjWithMqa: Linear;
  readonly kvALayernorm: RMSNorm;
  readonly kvBProj: Linear;
  readonly oProj: Linear;
  readonly indexer: Indexer | undefined;
  readonly #options: LatentAttentionOptions;
  readonly #queries: (x: Tensor, context: LayerContext) => Queries;
  readonly #past = new CacheSlot((cache) => new KeyValues(cache));

  /** Makes the projections, without memory. */
  constructor(device: Device, options: LatentAttentionOptions) {
    super();
    const { hiddenSize, numHeads, queryRank, keyValueRank, nopeDim, ropeDim, valueDim, init, bias } = options;
    const linear = (from: number, to: number, bias: boolean): Linear => new Linear(device, from, to, { bias, init });
    const width = numHeads * (nopeDim + ropeDim);
    if (queryRank === undefined) {
      const project = this.qProj = linear(hiddenSize, width, false);
      this.#queries = (x, { attentionMask }) => [project.call(x), attentionMask];
    } else {
      const [down, norm, up] = [
        linear(hiddenSize, queryRank, bias),
        new RMSNorm(device, queryRank, LATENT_EPS),
        linear(queryRank, width, false),
      ];
      [this.qAProj, this.qALayernorm, this.qBProj] = [down, norm, up];
      const indexer = this.indexer = options.indexer &&
        new Indexer(device, hiddenSize, queryRank, options.indexer, options.rotary, init);
      this.#queries = (x, context) => {
        const latent = norm.call(down.call(x));
        return [up.call(latent), indexer === undefined ? context.attentionMask : indexer.call(x, latent, context)];
      };
    }
    this.kvAProjWithMqa = linear(hiddenSize, keyValueRank + ropeDim, bias);
    this.kvALayernorm = new RMSNorm(device, keyValueRank, LATENT_EPS);
    this.kvBProj = linear(keyValueRank, numHeads * (nopeDim + valueDim), false);
    this.oProj = linear(numHeads * valueDim, hiddenSize, bias);
    this.#options = options;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const { numHeads, keyValueRank, nopeDim, ropeDim, rotary, interleaved, scale } = this.#options;
    const { positionIds, pastKeyValues } = context;
    const [cos, sin] = rotary.of(at(x.shape, 1, "dim"), context);
    const turn = (x: Tensor, headDim: number, start: number): Tensor =>
      rope(x, cos, sin, headDim, positionIds, { start, interleaved });
    const [projected, mask] = this.#queries(x, context);
    const queries = turn(projected, nopeDim + ropeDim, nopeDim);
    const parts = this.kvAProjWithMqa.call(x).split([keyValueRank, ropeDim], -1);
    const own = [this.kvALayernorm.call(at(parts, 0, "part")), turn(at(parts, 1, "part"), ropeDim, 0)] as const;
    const [latent, turned] = pastKeyValues === undefined ? own : this.#past.of(pastKeyValues).update(...own);
    const [keys, values] = this.#expand(latent, turned);
    const dropout = attentionDropout(this, this.#options.attentionDropout, context);
    const attrs = { heads: numHeads, kvHeads: numHeads, causal: true, scale, dropout };
    return this.oProj.call(attention(queries, keys, values, attrs, mask));
  }

  /** Keys and values of all heads. */
  #expand(latent: Tensor, turned: Tensor): readonly [keys: Tensor, values: Tensor] {
    const { numHeads, nopeDim, ropeDim, valueDim } = this.#options;
    const [batch, seq] = [at(latent.shape, 0, "dim"), at(latent.shape, 1, "dim")];
    const heads = this.kvBProj.call(latent).reshape([batch, seq, numHeads, nopeDim + valueDim]);
    const parts = heads.split([nopeDim, valueDim], -1);
    const shared = turned.unsqueeze(2).expand([batch, seq, numHeads, ropeDim]);
    const keys = cat([at(parts, 0, "part"), shared], -1);
    return [keys.reshape([batch, seq, -1]), at(parts, 1, "part").reshape([batch, seq, -1])];
  }
}
