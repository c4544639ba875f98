/**
 * The indexer of sparse attention (DSA, DeepSeek-AI 2025): a small attention whose scores say which keys each query of the large
 * one sees. It is not trained with the model.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { Device } from "../device/device.ts";
import { requireKernels } from "../device/kernels/required.ts";
import { float32 } from "../dtype.ts";
import { topkOp } from "../ops/topk.ts";
import { applyOne } from "../tensor/apply.ts";
import { ones, zeros } from "../tensor/create.ts";
import type { Init } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { CacheSlot, PastRows } from "./cache.ts";
import { rope, where } from "./functional.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";
import { LayerNorm } from "./norm.ts";
import type { RotaryTables } from "./rotary.ts";

/** Epsilon of the norm of keys. */
const KEY_EPS = 1e-6;
/** The score of a key that a query cannot see: float32's lowest. */
const UNSEEN = -3.4028234663852886e38;

/** Sizes and options of an indexer. */
export interface IndexerOptions {
  readonly numHeads: number;
  /** Elements of a head. Rotary embedding turns the first ones. */
  readonly headDim: number;
  /** Keys that a query sees. */
  readonly topK: number;
}

/** Chooses keys. */
export class Indexer extends Module<[x: Tensor, latentQueries: Tensor, context: LayerContext], Tensor> {
  readonly wqB: Linear;
  readonly wk: Linear;
  readonly kNorm: LayerNorm;
  readonly weightsProj: Linear;
  readonly #options: IndexerOptions;
  readonly #rotary: RotaryTables;
  readonly #past = new CacheSlot((cache) => new PastRows(cache));

  /**
   * Makes the projections, without memory.
   *
   * @param queryRank width of the rows that queries are made of
   */
  constructor(
    device: Device,
    hiddenSize: number,
    queryRank: number,
    options: IndexerOptions,
    rotary: RotaryTables,
    init: Init,
  ) {
    super();
    requireKernels(device, "an indexer", ["topk"]);
    const { numHeads, headDim } = options;
    this.wqB = new Linear(device, queryRank, numHeads * headDim, { bias: false, init });
    this.wk = new Linear(device, hiddenSize, headDim, { bias: false, init });
    this.kNorm = new LayerNorm(device, headDim, { eps: KEY_EPS });
    this.weightsProj = new Linear(device, hiddenSize, numHeads, { bias: false, init });
    this.#options = options;
    this.#rotary = rotary;
  }

  /** x [batch, seq, hidden], rows that queries are made of [batch, seq, queryRank] → uint8 [batch, seq, keys]: 0 hides a key */
  forward(x: Tensor, latentQueries: Tensor, context: LayerContext): Tensor {
    return noGrad(() => this.#select(x, latentQueries, context));
  }

  #select(x: Tensor, latentQueries: Tensor, context: LayerContext): Tensor {
    const { numHeads, headDim, topK } = this.#options;
    const { positionIds, pastKeyValues, attentionMask, documentStarts } = context;
    const [batch, seq] = [at(x.shape, 0, "dim"), at(x.shape, 1, "dim")];
    const [cos, sin] = this.#rotary.of(seq, context);
    const turn = (x: Tensor): Tensor => rope(x, cos, sin, headDim, positionIds, { interleaved: true });
    const queries = turn(this.wqB.call(latentQueries, context)).reshape([batch, seq * numHeads, headDim]);
    const added = turn(this.kNorm.call(this.wk.call(x, context)));
    const past = pastKeyValues === undefined ? 0 : pastKeyValues.length;
    const keys = pastKeyValues === undefined ? added : this.#past.of(pastKeyValues).update(added, past);
    const all = at(keys.shape, 1, "dim");
    const scores = queries.to(float32).matmul(keys.to(float32).transpose(1, 2)).mul(1 / Math.sqrt(headDim)).relu();
    const weights = this.weightsProj.call(x, context).to(float32).mul(1 / Math.sqrt(numHeads)).unsqueeze(3);
    const summed = scores.reshape([batch, seq, numHeads, all]).mul(weights).sum(2);
    const { positions } = this.#rotary;
    const places = positions.of(past, seq).unsqueeze(1);
    const keyPlaces = positions.of(0, all).unsqueeze(0);
    const causal = keyPlaces.le(places);
    const own = documentStarts === undefined
      ? causal
      : causal.logicalAnd(keyPlaces.unsqueeze(0).ge(documentStarts.unsqueeze(2)));
    const seen = attentionMask === undefined ? own : own.logicalAnd(attentionMask.unsqueeze(1));
    const best = applyOne(topkOp, [where(seen, summed, UNSEEN)], Math.min(topK, all)).reshape([batch * seq, -1]);
    const chosen = zeros(x.device, [batch * seq, all]).scatterAdd(1, best, ones(x.device, best.shape));
    return chosen.reshape([batch, seq, all]).gt(0).logicalAnd(seen);
  }
}
