/**
 * The geometry of a ring: which of a rank's queries see which keys of the shard that is with it, where rows are divided by the zigzag of
 * `positions.ts`. A shard is the two parts of each row that its rank computes.
 *
 * @module
 */
import type { OpContext } from "../ops/op.ts";
import { float32, int32 } from "../dtype.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { castTo } from "../ops/convert.ts";
import { type PositionPart, zigzag } from "./positions.ts";

/** Queries of one part, and the keys of a shard that they may see but for windows and documents. */
export interface RingTile {
  /** The queries' part of this rank's two: 0 or 1. */
  readonly queries: 0 | 1;
  /** Parts of the shard, from its first on, whose keys are seen. */
  readonly keyParts: 1 | 2;
  /** True if each query sees the keys up to its own position; else it sees all. */
  readonly causal: boolean;
}

/** The rank whose shard is with a rank after some steps: shards go from each rank to the next. */
export function ownerAt(step: number, { rank, size }: PositionPart): number {
  return (rank - step + size) % size;
}

/**
 * What a rank computes with the shard of `owner`. Of n ranks, each step but the first has as many pairs of queries and keys on every
 * rank: an earlier rank's first part comes before both parts of this rank, a later rank's two parts before its second.
 */
export function tilesOf(owner: number, { rank }: PositionPart): readonly RingTile[] {
  if (owner === rank) {
    return [{ queries: 0, keyParts: 1, causal: true }, { queries: 1, keyParts: 2, causal: true }];
  }
  if (owner > rank) return [{ queries: 1, keyParts: 2, causal: false }];
  return [{ queries: 0, keyParts: 1, causal: false }, { queries: 1, keyParts: 1, causal: false }];
}

/** Queries of one call of a kernel, and the keys of a shard that they see but for windows and documents. */
export interface RingPiece {
  /** The first query's place among this rank's positions of a row. */
  readonly start: number;
  readonly queries: number;
  /** Keys of the shard, from its first on. */
  readonly keys: number;
  /** True if the last query sees all these keys, and each one before it a key less. */
  readonly causal: boolean;
}

/**
 * A tile in pieces of at most `most` queries: where the host moves messages, it does so between them.
 *
 * @param width positions of a part
 */
export function piecesOf({ queries: part, keyParts, causal }: RingTile, width: number, most: number): RingPiece[] {
  return Array.from({ length: Math.ceil(width / most) }, (_, i) => {
    const begin = i * most;
    const queries = Math.min(most, width - begin);
    const keys = causal ? (keyParts - 1) * width + begin + queries : keyParts * width;
    return { start: part * width + begin, queries, keys, causal };
  });
}

/** Largest length of rows whose places float32 holds, in which the beginnings of what is seen are reckoned. */
export const MOST_PLACES: number = 2 ** 24;

/** For each query the place in its row of the first key that it may see: float32 [rows or 1, seq of this rank]. */
export interface FirstKeys {
  readonly places: Tensor;
  /** Rows that have places of their own; 1 if all share them. */
  readonly rows: number;
}

/**
 * The first key that each query of this rank may see, by the beginnings of documents and by a window; undefined where queries see all
 * keys before them.
 *
 * @param starts int32 [batch, seq of this rank]
 * @param window keys up to its own that a query sees
 * @param seq positions of this rank
 */
export function firstKeysOf(
  context: OpContext,
  starts: Tensor | undefined,
  window: number | undefined,
  seq: number,
  part: PositionPart,
): FirstKeys | undefined {
  const { kernels } = context.device;
  const ofDocuments = starts && context.empty(starts.shape, float32);
  if (ofDocuments !== undefined && starts !== undefined) castTo(ofDocuments, starts);
  const rows = starts?.shape[0] ?? 1;
  if (window === undefined || window >= seq * part.size) return ofDocuments && { places: ofDocuments, rows };
  const width = seq / 2;
  const ofWindow = context.empty([1, seq], float32);
  for (const [i, place] of zigzag(part).entries()) {
    const half = ofWindow.view({ shape: [width], strides: [1], offset: ofWindow.layout.offset + i * width });
    kernels.fill({ dtype: float32, n: width, value: 1, dst: half.ptr });
    // 1, 2, … is a query's place in its part and one.
    kernels.cumsum({ dtype: float32, rows: 1, cols: width, reverse: false, dst: half.ptr, src: half.ptr });
    const first = place * width - window;
    kernels.unary({ dtype: float32, op: "addScalar", n: width, p0: first, p1: 0, dst: half.ptr, src: half.ptr });
  }
  if (ofDocuments === undefined) return { places: ofWindow, rows: 1 };
  kernels.binary({
    ...{ dtype: float32, op: "maximum", shape: [rows, seq], aStrides: [seq, 1], bStrides: [0, 1] },
    ...{ dst: ofDocuments.ptr, a: ofDocuments.ptr, b: ofWindow.ptr },
  });
  return { places: ofDocuments, rows };
}

/** The first keys that queries may see in shards, counted in the shard. */
export class FirstKeysInShards {
  readonly #places: Tensor;
  readonly #width: number;
  readonly #size: number;
  readonly #sums: readonly [Tensor, Tensor];
  readonly #first: Tensor;

  /** @param size ranks that share a row */
  constructor(context: OpContext, { places, rows }: FirstKeys, size: number) {
    this.#places = places;
    this.#width = places.numel / rows / 2;
    this.#size = size;
    this.#sums = [context.empty(places.shape, float32), context.empty(places.shape, float32)];
    this.#first = context.empty(places.shape, int32);
  }

  /**
   * The first keys in the shard of a rank: the number of a tile's keys, or more, where a query sees none.
   *
   * @returns int32 of the shape of the places; valid until the next call
   */
  of(owner: number): Tensor {
    const { device: { kernels }, numel: n, ptr: src } = this.#places;
    const [sum, other] = this.#sums;
    for (const [i, part] of zigzag({ rank: owner, size: this.#size }).entries()) {
      const dst = (i === 0 ? sum : other).ptr;
      const p0 = -part * this.#width;
      kernels.unary({ dtype: float32, op: "addScalar", n, p0, p1: 0, dst, src });
      kernels.unary({ dtype: float32, op: "clamp", n, p0: 0, p1: this.#width, dst, src: dst });
    }
    kernels.accumulate({ dstDtype: float32, srcDtype: float32, n, dst: sum.ptr, src: other.ptr });
    castTo(this.#first, sum);
    return this.#first;
  }
}
