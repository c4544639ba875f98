/**
 * Multi-head latent attention (MLA, DeepSeek-AI 2024): keys and values of all heads are made of one narrow row a token, which is
 * all that a cache keeps, besides a part of the keys that is turned and that all heads share.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import type { Init } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { CacheSlot, KeyValues } from "./cache.ts";
import { attentionDropout } from "./dropout.ts";
import { attention, type AttentionFunction, cat, rope } from "./functional.ts";
import { Indexer, type IndexerOptions } from "./indexer.ts";
import { Linear } from "./linear.ts";
import { type HookHandle, Module } from "./module.ts";
import { RMSNorm } from "./norm.ts";
import type { ContextOutput } from "./pre_norm_block.ts";
import type { RotaryTables } from "./rotary.ts";

/** Epsilon of the norms of latent rows, independent of the model's other norms. */
const LATENT_EPS = 1e-6;

/**
 * The source of the keys that each query attends to:
 * - `indexer`: the layer's own indexer selects them, and the layer returns the selection if `isShared`;
 * - `shared`: the layer reuses the selection of the nearest layer before it that has an indexer ({@link LayerContext}'s
 *   `selectedKeys`), as in IndexShare.
 */
export type KeySelection =
  | { readonly type: "indexer"; readonly indexer: IndexerOptions; readonly isShared: boolean }
  | { readonly type: "shared" };

/** Sizes and options of a latent attention. */
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
  /** True if rotary embedding pairs elements 2i and 2i + 1, instead of i and i + half the width. */
  readonly interleaved: boolean;
  /** Selects the keys that each query attends to. @default every query attends to all keys up to its own position */
  readonly keySelection?: KeySelection;
  /** Initialization of weights; biases are zeros. */
  readonly init: Init;
  /** True if the projections to latent rows and of the output have a bias. */
  readonly bias: boolean;
  /** Probability that a token does not hear another one in training. @default 0 */
  readonly attentionDropout?: number;
}

/** Queries of all heads, and the keys that an indexer of this layer selected for them, if it has one. */
type Queries = readonly [queries: Tensor, selected: Tensor | undefined];

/** Multi-head latent attention. */
export class LatentAttention extends Module<[x: Tensor, context: LayerContext], ContextOutput> {
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
  #attention: AttentionFunction = attention;

  /** Makes the projections, without memory. */
  constructor(device: Device, options: LatentAttentionOptions) {
    super();
    const { hiddenSize, numHeads, queryRank, keyValueRank, nopeDim, ropeDim, valueDim, init, bias } = options;
    const linear = (from: number, to: number, bias: boolean): Linear => new Linear(device, from, to, { bias, init });
    const width = numHeads * (nopeDim + ropeDim);
    if (queryRank === undefined) {
      const project = this.qProj = linear(hiddenSize, width, false);
      this.#queries = (x, context) => [project.call(x, context), undefined];
    } else {
      const [down, norm, up] = [
        linear(hiddenSize, queryRank, bias),
        new RMSNorm(device, queryRank, LATENT_EPS),
        linear(queryRank, width, false),
      ];
      [this.qAProj, this.qALayernorm, this.qBProj] = [down, norm, up];
      const { keySelection, rotary } = options;
      const indexer = this.indexer = keySelection?.type === "indexer"
        ? new Indexer(device, hiddenSize, queryRank, keySelection.indexer, rotary, init)
        : undefined;
      this.#queries = (x, context) => {
        const latent = norm.call(down.call(x, context));
        return [up.call(latent, context), indexer?.call(x, latent, context)];
      };
    }
    this.kvAProjWithMqa = linear(hiddenSize, keyValueRank + ropeDim, bias);
    this.kvALayernorm = new RMSNorm(device, keyValueRank, LATENT_EPS);
    this.kvBProj = linear(keyValueRank, numHeads * (nopeDim + valueDim), false);
    this.oProj = linear(numHeads * valueDim, hiddenSize, bias);
    this.#options = options;
  }

  /**
   * x [batch, seq, hidden] → the same shape, with the selected keys where later layers share them
   *
   * @throws {ArgumentError} if the layer shares a selection and no layer before it made one
   */
  forward(x: Tensor, context: LayerContext): ContextOutput {
    const { keyValueRank, nopeDim, ropeDim, rotary, interleaved, scale } = this.#options;
    const { positionIds, pastKeyValues, documentStarts } = context;
    const [cos, sin] = rotary.of(at(x.shape, 1, "dim"), context);
    const turn = (x: Tensor, headDim: number, start: number): Tensor =>
      rope(x, cos, sin, headDim, positionIds, { start, interleaved });
    const [projected, selected] = this.#queries(x, context);
    const mask = selected ?? this.#maskOf(context);
    const queries = turn(projected, nopeDim + ropeDim, nopeDim);
    const parts = this.kvAProjWithMqa.call(x, context).split([keyValueRank, ropeDim], -1);
    const own = [this.kvALayernorm.call(at(parts, 0, "part")), turn(at(parts, 1, "part"), ropeDim, 0)] as const;
    const [latent, turned] = pastKeyValues === undefined ? own : this.#past.of(pastKeyValues).update(...own);
    const [keys, values] = this.#expand(latent, turned, context);
    const dropout = attentionDropout(this, this.#options.attentionDropout, context);
    // Of projections that are cut over an axis each rank has some heads.
    const heads = at(queries.shape, 2, "dim") / (nopeDim + ropeDim);
    const attrs = { heads, kvHeads: heads, causal: true, scale, dropout };
    // A cache has the keys and values of all tokens, so nothing is gathered.
    const attend = pastKeyValues === undefined ? this.#attention : attention;
    const hidden = this.oProj.call(attend(queries, keys, values, attrs, mask, undefined, documentStarts), context);
    const { keySelection } = this.#options;
    if (selected === undefined || keySelection?.type !== "indexer" || !keySelection.isShared) return hidden;
    return { hidden, selectedKeys: selected };
  }

  /** Has `attend` compute attention in calls without a cache. Used by context parallelism. @returns ends it */
  setAttention(attend: AttentionFunction): HookHandle {
    this.#attention = attend;
    return () => void (this.#attention = attention);
  }

  /** The options that it was made with. */
  get options(): LatentAttentionOptions {
    return this.#options;
  }

  /** The mask of a layer without an indexer: uint8 [batch, keys] of padding, or a shared selection [batch, seq, keys]. */
  #maskOf({ attentionMask, selectedKeys }: LayerContext): Tensor | undefined {
    if (this.#options.keySelection?.type !== "shared") return attentionMask;
    if (selectedKeys !== undefined) return selectedKeys;
    const name = this.fqn === undefined ? "This attention" : `'${this.fqn}'`;
    throw new ArgumentError(
      `${name} reuses the keys that the indexer of an earlier layer selected, but its context has no 'selectedKeys': run the ` +
        "layers in their order, and give each one the selection that the last indexer returned",
    );
  }

  /** Keys and values of all heads. */
  #expand(latent: Tensor, turned: Tensor, context: LayerContext): readonly [keys: Tensor, values: Tensor] {
    const { nopeDim, ropeDim, valueDim } = this.#options;
    const [batch, seq] = [at(latent.shape, 0, "dim"), at(latent.shape, 1, "dim")];
    const heads = this.kvBProj.call(latent, context).reshape([batch, seq, -1, nopeDim + valueDim]);
    const parts = heads.split([nopeDim, valueDim], -1);
    const shared = turned.unsqueeze(2).expand([batch, seq, at(heads.shape, 2, "dim"), ropeDim]);
    const keys = cat([at(parts, 0, "part"), shared], -1);
    return [keys.reshape([batch, seq, -1]), at(parts, 1, "part").reshape([batch, seq, -1])];
  }
}
