/** Attention and its gradients in float64, by its definition. @module */

/** A call on whole rows. */
export interface AttentionCase {
  readonly batch: number;
  readonly seq: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly window?: number;
  readonly softcap?: number;
  /** The place in its row of each position's document's first one. */
  readonly starts?: readonly number[] | undefined;
  /** A score of each head. */
  readonly sinks?: readonly number[];
}

/** Arrays of a call, row by row: q [batch, seq, heads, headDim], k [batch, seq, kvHeads, headDim], v [batch, seq, kvHeads, valueDim]. */
export interface AttentionInputs {
  readonly q: readonly number[];
  readonly k: readonly number[];
  readonly v: readonly number[];
  /** The gradient of the output. */
  readonly seed: readonly number[];
}

/** What comes of it. */
export interface AttentionValues {
  readonly out: number[];
  readonly dq: number[];
  readonly dk: number[];
  readonly dv: number[];
  readonly dsinks: number[];
}

const numberAt = (list: readonly number[], i: number): number => list[i] ?? NaN;

function dot(a: readonly number[], from: number, b: readonly number[], at: number, n: number): number {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += numberAt(a, from + i) * numberAt(b, at + i);
  return sum;
}

function addScaled(to: number[], at: number, from: readonly number[], begin: number, n: number, factor: number): void {
  for (let i = 0; i < n; i++) to[at + i] = numberAt(to, at + i) + factor * numberAt(from, begin + i);
}

/** The output and all gradients. */
export function float64Attention(sizes: AttentionCase, { q, k, v, seed }: AttentionInputs): AttentionValues {
  const { batch, seq, heads, kvHeads, headDim, valueDim, window = seq, softcap, starts, sinks } = sizes;
  const scale = 1 / Math.sqrt(headDim);
  const zeros = (n: number): number[] => new Array<number>(n).fill(0);
  const found = {
    out: zeros(batch * seq * heads * valueDim),
    dq: zeros(q.length),
    dk: zeros(k.length),
    dv: zeros(v.length),
    dsinks: zeros(sinks === undefined ? 0 : heads),
  };
  for (let place = 0; place < batch * seq * heads; place++) {
    const [head, token] = [place % heads, Math.floor(place / heads)];
    const [position, row] = [token % seq, Math.floor(token / seq)];
    const first = Math.max(0, position - window + 1, starts === undefined ? 0 : numberAt(starts, token));
    const keyAt = (key: number): number => (row * seq + key) * kvHeads + Math.floor(head / (heads / kvHeads));
    const keys = Array.from({ length: position + 1 - first }, (_, i) => keyAt(first + i));
    const raw = keys.map((key) => scale * dot(q, place * headDim, k, key * headDim, headDim));
    const scores = raw.map((score) => softcap === undefined ? score : softcap * Math.tanh(score / softcap));
    const sink = sinks === undefined ? -Infinity : numberAt(sinks, head);
    const top = Math.max(sink, ...scores);
    const weights = scores.map((score) => Math.exp(score - top));
    const total = weights.reduce((sum, weight) => sum + weight, Math.exp(sink - top));
    for (const [i, key] of keys.entries()) {
      addScaled(found.out, place * valueDim, v, key * valueDim, valueDim, numberAt(weights, i) / total);
    }
    const delta = dot(seed, place * valueDim, found.out, place * valueDim, valueDim);
    for (const [i, key] of keys.entries()) {
      const share = numberAt(weights, i) / total;
      addScaled(found.dv, key * valueDim, seed, place * valueDim, valueDim, share);
      const slope = softcap === undefined ? 1 : 1 - (numberAt(scores, i) / softcap) ** 2;
      const ds = share * (dot(seed, place * valueDim, v, key * valueDim, valueDim) - delta) * slope * scale;
      addScaled(found.dq, place * headDim, k, key * headDim, headDim, ds);
      addScaled(found.dk, key * headDim, q, place * headDim, headDim, ds);
    }
    if (sinks !== undefined) found.dsinks[head] = numberAt(found.dsinks, head) - Math.exp(sink - top) / total * delta;
  }
  return found;
}
