/**
 * Times causal attention: `attention.ts <math>-forward|backward…` prints the milliseconds of the best call of each.
 *
 * @module
 */
import { float32 } from "fullyshard";
import { bestOf, randomArray, timeCases } from "./timing.ts";

const [batch, seqQ, heads, kvHeads, headDim] = [4, 256, 8, 4, 32];
const [queries, keys] = [batch * seqQ * heads * headDim, batch * seqQ * kvHeads * headDim];

await timeCases((device, name) => {
  const sizes = { dtype: float32, batch, seqQ, seqK: seqQ, heads, kvHeads, headDim, valueDim: headDim };
  const strides = { strideQ: heads * headDim, strideK: kvHeads * headDim, strideV: kvHeads * headDim };
  const dropout = { p: 0, key: 0, sample: 0 };
  const how = {
    ...sizes,
    ...strides,
    ...dropout,
    scale: headDim ** -0.5,
    softcap: 0,
    causal: true,
    window: 0,
    maskRows: 1,
  };
  const [q, o, dO, dq] = [queries, queries, queries, queries].map((n) => randomArray(device, n));
  const [k, v, dk, dv] = [keys, keys, keys, keys].map((n) => randomArray(device, n));
  const lse = randomArray(device, batch * heads * seqQ);
  if (!q || !o || !dO || !dq || !k || !v || !dk || !dv) throw new Error("no memory");
  const forward = (): void => device.kernels.attention({ ...how, o, lse, q, k, v });
  forward();
  if (name === "forward") return bestOf(forward);
  return bestOf(() => device.kernels.attentionBackward({ ...how, dq, dk, dv, dO, o, lse, q, k, v }));
});
