/**
 * Causal self-attention with the options that decoders choose from: grouped heads, biases, norms of queries and keys, rotary
 * positions, a sliding window, one projection or three, a gate on the output.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import type { WeightLayout } from "../ops/matmul.ts";
import { threeSizes } from "../shape.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { CacheSlot, type GenerationCache, KeyValues } from "./cache.ts";
import { attentionDropout, type RandomContext } from "./dropout.ts";
import { attention, type AttentionFunction, rope } from "./functional.ts";
import { Linear, type LinearOptions } from "./linear.ts";
import type { HookHandle, Layer } from "./module.ts";
import { type FieldNames, RenamedModule } from "./renamed.ts";
import type { RotaryTables } from "./rotary.ts";

/** Inputs of the layers of a forward besides the hidden states. */
export interface LayerContext extends RandomContext {
  /** uint8 [batch, tokens in the cache + seq]: 0 hides a token (padding). */
  readonly attentionMask?: Tensor | undefined;
  /** int32 [batch, seq]. @default one after the other, from the number of tokens in the cache on, or from 0 in each document */
  readonly positionIds?: Tensor | undefined;
  /**
   * Starts of the documents that follow each other in a row: int32 [batch, seq], for each token the place in its row of its
   * document's first token, so numbers that never fall along a row. Tokens attend to tokens of their own document only; no layer
   * passes anything from a document to the next. @default each row is one document
   */
  readonly documentStarts?: Tensor | undefined;
  /** The tokens before these, which are added to it. @default there are none, and none are kept */
  readonly pastKeyValues?: GenerationCache | undefined;
  /**
   * The keys that the indexer of an earlier layer selected for each query, uint8 [batch, seq, keys]; 0 hides a key. Layers that
   * share a selection read it. @default no layer has selected keys yet
   */
  readonly selectedKeys?: Tensor | undefined;
  /**
   * Positions of each row that this call computes, on all ranks that share its rows. Where ranks have parts of the rows between layers
   * (sequence parallelism), hidden states have fewer. @default as many as the hidden states
   */
  readonly seqLength?: number | undefined;
}

/** Sizes and options of an attention. */
export interface SelfAttentionOptions {
  readonly hiddenSize: number;
  /** Heads of the queries. */
  readonly numHeads: number;
  /** Heads of keys and values: a divisor of `numHeads`. */
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Initialization of weights; biases are zeros. */
  readonly init: Init;
  /** Initialization of the output's weight. @default `init` */
  readonly outInit?: Init;
  /** True if the projections of queries, keys and values have a bias. @default false */
  readonly qkvBias?: boolean;
  /** True if the projection of the output has a bias. @default false */
  readonly outBias?: boolean;
  /** True if one projection `qkvProj` gives queries, keys and values, in this order. @default false */
  readonly fused?: boolean;
  /** True if `qProj` gives a gate after each head's queries, whose sigmoid multiplies the head's output. @default false */
  readonly gated?: boolean;
  /** Layout of the weights. @default `outIn` */
  readonly layout?: WeightLayout;
  /** Norms of queries and keys, before they are turned: over each head, or over all together. @default none */
  readonly qkNorm?: { readonly over: "head" | "projection"; readonly make: (width: number) => Layer };
  /** Turns queries and keys. @default they know no positions */
  readonly rotary?: RotaryTables;
  /** True if neighbouring elements of a head are turned as pairs, else each of its first half with one of its second. @default false */
  readonly interleaved?: boolean;
  /** Tokens that each one sees, itself included. @default all before it */
  readonly window?: number | undefined;
  /** True if each head has a sink, a parameter that takes its part of the attention. @default false */
  readonly sinks?: boolean;
  /** Probability that a token does not hear another one in training. @default 0 */
  readonly attentionDropout?: number;
  /** Factor on q·k. @default 1 / √headDim */
  readonly scale?: number;
  /** Bound c of the scores: a score becomes c tanh(score / c). @default none */
  readonly softcap?: number | undefined;
  /** Names of the fields in FQNs. */
  readonly names?: FieldNames;
}

/** Causal self-attention. */
export class SelfAttention extends RenamedModule<[x: Tensor, context: LayerContext], Tensor> {
  readonly qkvProj: Linear | undefined;
  readonly qProj: Linear | undefined;
  readonly kProj: Linear | undefined;
  readonly vProj: Linear | undefined;
  readonly oProj: Linear;
  readonly qNorm: Layer | undefined;
  readonly kNorm: Layer | undefined;
  /** [numHeads], if there are some. */
  readonly sinks: Parameter | undefined;
  readonly #options: SelfAttentionOptions;
  readonly #project: (x: Tensor, context: LayerContext) => readonly [q: Tensor, k: Tensor, v: Tensor];
  readonly #past = new CacheSlot((cache) => new KeyValues(cache));
  #attention: AttentionFunction = attention;

  /** Makes the projections, without memory. */
  constructor(device: Device, options: SelfAttentionOptions) {
    super(options.names);
    const { hiddenSize, numHeads, numKvHeads, headDim, init, outInit = init, fused = false, qkNorm } = options;
    const { qkvBias = false, outBias = false, layout = "outIn", gated = false } = options;
    const widths = [numHeads * headDim, numKvHeads * headDim, numKvHeads * headDim] as const;
    const projection = (width: number, packs: LinearOptions["packs"] = 1): Linear =>
      new Linear(device, hiddenSize, width, { bias: qkvBias, init, layout, packs });
    if (fused) {
      const packs = numHeads === numKvHeads ? 3 : "unequal";
      const all = this.qkvProj = projection(widths[0] + widths[1] + widths[2], packs);
      this.#project = (x, context) => {
        const joined = all.call(x, context);
        // A part of the heads is as wide as the others only where there are as many of keys as of queries.
        const parts = packs === 3 ? joined.chunk(3, -1) : joined.split(widths, -1);
        return [at(parts, 0, "part"), at(parts, 1, "part"), at(parts, 2, "part")];
      };
    } else {
      const [q, k, v] = [projection(gated ? 2 * widths[0] : widths[0]), projection(widths[1]), projection(widths[2])];
      [this.qProj, this.kProj, this.vProj] = [q, k, v];
      this.#project = (x, context) => [q.call(x, context), k.call(x, context), v.call(x, context)];
    }
    this.oProj = new Linear(device, widths[0], hiddenSize, { bias: outBias, init: outInit, layout });
    this.qNorm = qkNorm?.make(qkNorm.over === "head" ? headDim : widths[0]);
    this.kNorm = qkNorm?.make(qkNorm.over === "head" ? headDim : widths[1]);
    this.sinks = options.sinks ?? false ? new Parameter(device, [numHeads], { init }) : undefined;
    this.#options = options;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const { headDim, window, softcap, scale = 1 / Math.sqrt(headDim) } = this.#options;
    const { attentionMask, pastKeyValues, documentStarts } = context;
    const [projected, k, v] = this.#project(x, context);
    const [q, gate] = this.#ungated(projected);
    const turn = this.#turner(x, context);
    const queries = turn(this.#normed(q, this.qNorm));
    const own = [turn(this.#normed(k, this.kNorm)), v] as const;
    const [keys, values] = pastKeyValues === undefined ? own : this.#past.of(pastKeyValues).update(...own);
    const dropout = attentionDropout(this, this.#options.attentionDropout, context);
    // Of projections that are cut over an axis each rank has some heads.
    const [heads, kvHeads] = [at(q.shape, 2, "dim") / headDim, at(k.shape, 2, "dim") / headDim];
    const attrs = { heads, kvHeads, causal: true, scale, softcap, window, dropout };
    // A cache has the keys and values of all tokens, so nothing is gathered.
    const attend = pastKeyValues === undefined ? this.#attention : attention;
    const heard = attend(queries, keys, values, attrs, attentionMask, this.sinks, documentStarts);
    return this.oProj.call(gate === undefined ? heard : heard.mul(gate.sigmoid()), context);
  }

  /** Has `attend` compute attention in calls without a cache. Used by context parallelism. @returns ends it */
  setAttention(attend: AttentionFunction): HookHandle {
    this.#attention = attend;
    return () => void (this.#attention = attention);
  }

  /** The options that it was made with. */
  get options(): SelfAttentionOptions {
    return this.#options;
  }

  /** Queries, and gates where there are any. */
  #ungated(q: Tensor): readonly [q: Tensor, gate: Tensor | undefined] {
    const { gated = false, headDim } = this.#options;
    if (!gated) return [q, undefined];
    const [batch, seq] = [at(q.shape, 0, "dim"), at(q.shape, 1, "dim")];
    const parts = q.reshape([batch, seq, -1, 2, headDim]).split(1, 3).map((part) => part.reshape([batch, seq, -1]));
    return [at(parts, 0, "part"), at(parts, 1, "part")];
  }

  #normed(x: Tensor, norm: Layer | undefined): Tensor {
    if (norm === undefined) return x;
    if (this.#options.qkNorm?.over === "projection") return norm.call(x);
    const [batch, seq] = threeSizes("attention", x.shape);
    return norm.call(x.reshape([batch, seq, -1, this.#options.headDim])).reshape(x.shape);
  }

  /** Turns heads by the positions of this call's tokens. */
  #turner({ shape }: Tensor, context: LayerContext): (x: Tensor) => Tensor {
    const { rotary, headDim, interleaved = false } = this.#options;
    if (rotary === undefined) return (x) => x;
    const [, seq] = threeSizes("attention", shape);
    const [cos, sin] = rotary.of(seq, context);
    return (x) => rope(x, cos, sin, headDim, context.positionIds, { interleaved });
  }
}
