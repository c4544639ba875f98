/**
 * The gated delta rule by chunks against the rule token by token in float64, with sequences that end within a chunk, and its
 * gradients against central differences.
 *
 * @module
 */
import { type DType, float32 } from "../../../src/dtype.ts";
import { type CasesOf, each, eachFloat, fround, pick, rounding, spread, startsOf, sum } from "./case.ts";

/**
 * Sizes of a gated delta rule: batch, seq, key heads, value heads, key dim, value dim, tokens of a chunk; and the lengths of the
 * documents in each row, where there are some.
 */
const DELTAS = [
  [1, 1, 1, 1, 1, 1, 64],
  [2, 9, 2, 4, 3, 5, 4],
  [1, 8, 1, 3, 6, 2, 4],
  [1, 5, 1, 1, 17, 9, 1],
  [1, 66, 1, 1, 2, 2, 64],
  [0, 3, 1, 1, 2, 2, 2],
  [2, 9, 2, 4, 3, 5, 4, [[2, 1, 6], [4, 5]]], // borders within a chunk and between two
  [1, 66, 1, 1, 2, 2, 64, [[30, 1, 33, 2]]],
] as const;
type Delta = typeof DELTAS[number];

/** For each token the place of its document's first one. */
function startsIn([, , , , , , , documents]: Delta): number[] | undefined {
  return documents && startsOf(documents);
}

/** The arrays that a gated delta rule begins with. */
interface DeltaInputs {
  readonly q: readonly number[];
  readonly k: readonly number[];
  readonly v: readonly number[];
  readonly g: readonly number[];
  readonly beta: readonly number[];
  readonly state: readonly number[];
}

const DELTA_SCALE = fround(0.7);

/** The rule in float64, token by token: outputs, last states, and the states before each chunk. */
function deltaRule(sizes: Delta, inputs: DeltaInputs) {
  const [batch, seq, keyHeads, valueHeads, keyDim, valueDim, chunk] = sizes;
  const { q, k, v, g, beta, state } = inputs;
  const starts = startsIn(sizes);
  const [size, chunks] = [keyDim * valueDim, Math.ceil(seq / chunk)];
  const o = each(batch * seq * valueHeads * valueDim, () => 0);
  const states = each(batch * valueHeads * chunks * size, () => 0);
  const last = [...state];
  for (let place = 0; place < batch * valueHeads; place++) {
    const [b, head] = [Math.floor(place / valueHeads), place % valueHeads];
    const s = last.slice(place * size, (place + 1) * size);
    for (let t = 0; t < seq; t++) {
      const row = (b * seq + t) * valueHeads + head;
      const key = ((b * seq + t) * keyHeads + Math.floor(head / (valueHeads / keyHeads))) * keyDim;
      const read = (x: readonly number[], e: number): number => {
        return sum(keyDim, (d) => pick(s, d * valueDim + e) * pick(x, key + d));
      };
      if (t % chunk === 0) states.splice((place * chunks + t / chunk) * size, size, ...s);
      if (starts !== undefined && pick(starts, b * seq + t) === t) s.fill(0);
      s.forEach((value, at) => s[at] = Math.exp(pick(g, row)) * value);
      const write = each(valueDim, (e) => pick(beta, row) * (pick(v, row * valueDim + e) - read(k, e)));
      s.forEach((value, at) => s[at] = value + pick(k, key + Math.floor(at / valueDim)) * pick(write, at % valueDim));
      for (let e = 0; e < valueDim; e++) o[row * valueDim + e] = DELTA_SCALE * read(q, e);
    }
    last.splice(place * size, size, ...s);
  }
  return { o, states, state: last };
}

/** Arguments and arrays of one rule. */
function deltaOf(dtype: DType, sizes: Delta) {
  const [batch, seq, keyHeads, valueHeads, keyDim, valueDim, chunk] = sizes;
  const [keys, values, rows] = [batch * seq * keyHeads * keyDim, batch * seq * valueHeads * valueDim, batch * seq];
  const inputs: DeltaInputs = {
    q: spread(keys, 1, 1, dtype),
    k: spread(keys, 2, 1.2 / Math.sqrt(keyDim), dtype),
    v: spread(values, 3, 1, dtype),
    g: spread(rows * valueHeads, 4, 0.35, float32).map((g) => fround(g - 0.35)),
    beta: spread(rows * valueHeads, 5, 0.5, dtype).map((beta) => rounding(dtype)(beta + 0.5)),
    state: spread(batch * valueHeads * keyDim * valueDim, 6, 1, float32),
  };
  const chunks = Math.ceil(seq / chunk);
  const args = { dtype, batch, seq, keyHeads, valueHeads, keyDim, valueDim, chunk, chunks, scale: DELTA_SCALE };
  const starts = startsIn(sizes);
  return { args, inputs, starts, without: starts === undefined ? ["starts"] as const : [] };
}

/** Cases of the forward. */
export const gatedDelta: CasesOf<"gatedDelta"> = eachFloat((dtype, epsilon) =>
  DELTAS.map((sizes) => {
    const { args, inputs, starts, without } = deltaOf(dtype, sizes);
    return {
      args,
      without,
      arrays: { ...inputs, ...starts && { starts } },
      expect: () => {
        const { o, state, states } = deltaRule(sizes, inputs);
        const inner = { relative: 1e-6, absolute: 2e-6 };
        return {
          o: { values: o, relative: epsilon + 1e-6, absolute: 2e-6 },
          state: { values: state, ...inner },
          states: { values: states, ...inner },
        };
      },
    };
  })
);

/** Cases of the backward, whose gradients are those of central differences. */
export const gatedDeltaBackward: CasesOf<"gatedDeltaBackward"> = eachFloat((dtype, epsilon) =>
  DELTAS.map((sizes) => {
    const { args, inputs, starts, without } = deltaOf(dtype, sizes);
    const { state, ...others } = inputs;
    const { o, states } = deltaRule(sizes, inputs);
    const [dO, dState] = [spread(o.length, 7, 1, dtype), spread(state.length, 8, 1, float32)];
    const loss = (moved: DeltaInputs): number => {
      const { o, state } = deltaRule(sizes, moved);
      return sum(o.length, (i) => pick(o, i) * pick(dO, i)) +
        sum(state.length, (i) => pick(state, i) * pick(dState, i));
    };
    const gradientOf = (name: keyof DeltaInputs): number[] =>
      inputs[name].map((value, i) => {
        const at = (d: number): number => loss({ ...inputs, [name]: inputs[name].with(i, value + d) });
        return (at(1e-5) - at(-1e-5)) / 2e-5;
      });
    return {
      args,
      without,
      arrays: { ...others, states, dO, dState, ...starts && { starts } },
      expect: () => {
        const [wide, stored] = [{ relative: 2e-6, absolute: 8e-6 }, { relative: epsilon + 2e-6, absolute: 8e-6 }];
        return {
          dState: { values: gradientOf("state"), ...wide },
          dq: { values: gradientOf("q"), ...stored },
          dk: { values: gradientOf("k"), ...stored },
          dv: { values: gradientOf("v"), ...stored },
          dg: { values: gradientOf("g"), ...wide },
          dbeta: { values: gradientOf("beta"), ...stored },
        };
      },
    };
  })
);
