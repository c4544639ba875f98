/**
 * Kernels of attention sinks against the plain formula.
 *
 * @module
 */
import { type Cases, type CasesOf, eachFloat, pick, sum } from "./case.ts";

const SINKS = [[1, 1, 1, 1], [2, 3, 2, 5], [1, 9, 3, 40]] as const;

/** The query of an element of an output [batch, seq, heads, headDim], as a place of `lse` [batch, heads, seq], and its head. */
function queryOf(at: number, [, seq, heads, headDim]: readonly [number, number, number, number]): [number, number] {
  const [h, t] = [Math.floor(at / headDim) % heads, Math.floor(at / headDim / heads) % seq];
  return [(Math.floor(at / headDim / heads / seq) * heads + h) * seq + t, h];
}

const attentionSinks: CasesOf<"attentionSinks"> = eachFloat((dtype, epsilon) =>
  SINKS.map((sizes) => {
    const [batch, seq, heads, headDim] = sizes;
    return {
      args: { dtype, batch, seq, heads, headDim },
      arrays: { lse: { low: -2, high: 4 } },
      expect: (before) => {
        const [o, lse, sinks] = [before("o"), before("lse"), before("sinks")];
        const all = lse.map((l, i) => Math.log(Math.exp(l) + Math.exp(pick(sinks, Math.floor(i / seq) % heads))));
        const values = o.map((v, i) => {
          const [query] = queryOf(i, sizes);
          return v * Math.exp(pick(lse, query) - pick(all, query));
        });
        return { o: { values, relative: epsilon + 1e-6 }, lse: { values: all, relative: 1e-6, absolute: 1e-6 } };
      },
    };
  })
);

const attentionSinksBackward: CasesOf<"attentionSinksBackward"> = eachFloat((dtype) =>
  SINKS.map((sizes) => {
    const [batch, seq, heads, headDim] = sizes;
    return {
      args: { dtype, batch, seq, heads, headDim },
      arrays: { lse: { low: 0, high: 4 } },
      expect: (before) => {
        const [dO, o, lse, sinks] = [before("dO"), before("o"), before("lse"), before("sinks")];
        const values = sinks.map((sink, head) =>
          sum(o.length, (i) => {
            const [query, h] = queryOf(i, sizes);
            return h === head ? -Math.exp(sink - pick(lse, query)) * pick(o, i) * pick(dO, i) : 0;
          })
        );
        return { dsinks: { values, relative: 1e-6, absolute: 1e-6 } };
      },
    };
  })
);

/** Cases of kernels of attention sinks. */
export const SINK_CASES: Cases<"attentionSinks" | "attentionSinksBackward"> = {
  attentionSinks,
  attentionSinksBackward,
};
