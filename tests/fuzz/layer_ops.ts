/**
 * Fuzzing of ops of layers: products, norms, positions, attention, experts, losses.
 *
 * @module
 */
import type { Device } from "../../src/device/device.ts";
import { OPS } from "../../src/device/kernels/signature.ts";
import { type DType, float32, int32, uint8 } from "../../src/dtype.ts";
import { attentionOp } from "../../src/ops/attention.ts";
import { causalConvOp } from "../../src/ops/conv.ts";
import type { DropoutAttrs } from "../../src/ops/dropout.ts";
import { embeddingOp } from "../../src/ops/embedding.ts";
import { clampedSwigluOp, combineOp, dispatchOp, groupedLinearOp, sortPairsOp } from "../../src/ops/experts.ts";
import { gatedDeltaOp } from "../../src/ops/gated_delta.ts";
import { crossEntropyOp, linearCrossEntropyOp } from "../../src/ops/loss.ts";
import { linearOp, matmulOp } from "../../src/ops/matmul.ts";
import { layerNormOp, rmsNormOp } from "../../src/ops/norm.ts";
import { ropeOp } from "../../src/ops/rope.ts";
import { routeOp } from "../../src/ops/router.ts";
import { logSoftmaxOp, softmaxOp } from "../../src/ops/softmax.ts";
import { logitScoresOp, tokenScoresOp } from "../../src/ops/token_scores.ts";
import { apply, applyOne } from "../../src/tensor/apply.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { FuzzOp, InputDraw } from "./cases.ts";
import type { Draw } from "./draw.ts";
import { fuzzNamed, fuzzOf } from "./elementwise_ops.ts";

const signed = (...shape: readonly number[]): InputDraw => ({ shape, data: { kind: "signed" } });
const small = (...shape: readonly number[]): InputDraw => ({ shape, data: { kind: "small" } });
const ints = (n: number, ...shape: readonly number[]): InputDraw => ({
  shape,
  data: { kind: "below", n },
  dtype: int32,
});
const listed = (values: readonly number[], ...shape: readonly number[]): InputDraw => ({
  shape,
  data: { kind: "values", values },
  dtype: int32,
});
const LAYOUTS = ["outIn", "inOut"] as const;

/** Labels of rows of a shape. */
function labelsOf(draw: Draw, classes: number, shape: readonly number[]): { input: InputDraw; ignoreIndex: number } {
  const ignoreIndex = draw.pick([-100, -100, classes - 1]);
  return { input: { shape, data: { kind: "labels", n: classes, ignore: ignoreIndex }, dtype: int32 }, ignoreIndex };
}

/** The dropped probabilities of heads [batch, heads, seqQ, seqK]: the reference does not know the random numbers. */
function keptBy(device: Device, sizes: readonly [number, number, number, number], dropout: DropoutAttrs): number[] {
  const [batch, heads, seqQ, seqK] = sizes;
  using _frame = scope();
  const [q, k] = [zeros(device, [batch, seqQ, heads]), zeros(device, [batch, seqK, heads])];
  // With values that are rows of an identity, the output of a head is its probabilities.
  const one = Array.from(
    { length: seqK * heads * seqK },
    (_, i) => i % seqK === Math.floor(i / (heads * seqK)) ? 1 : 0,
  );
  const v = tensor(device, one, { shape: [1, seqK, heads * seqK] }).expand([batch, seqK, heads * seqK]);
  const attrs = { heads, kvHeads: heads, causal: false, scale: 1, dropout };
  const o = applyOne(attentionOp, [q, k, v], attrs).reshape([batch, seqQ, heads, seqK]).permute([0, 2, 1, 3]);
  return [...o.toArray()].map((value) => value === 0 ? 0 : 1);
}

function attentionFuzz(draw: Draw, device: Device) {
  const kvHeads = draw.int(1, 2);
  const heads = kvHeads * draw.int(1, 2);
  const [headDim, valueDim] = [draw.int(1, 4), draw.int(1, 3)];
  const [batch, seqQ, seqK] = [draw.int(1, 2), draw.size(), Math.max(1, draw.size())];
  const causal = draw.chance(0.6);
  const masked = draw.chance(0.4);
  const sinks = draw.chance(0.3);
  const window = causal && draw.chance(0.4) ? { window: draw.int(1, 3) } : {};
  const maskShape = draw.chance(0.5) ? [batch, seqK] : [batch, seqQ, seqK];
  const inputs = [
    signed(batch, seqQ, heads * headDim),
    signed(batch, seqK, kvHeads * headDim),
    signed(batch, seqK, kvHeads * valueDim),
    ...masked ? [{ shape: maskShape, data: { kind: "mask" }, dtype: uint8 } as const] : [],
    ...sinks ? [signed(heads)] : [],
  ];
  const own = { heads, kvHeads, causal, scale: draw.int(1, 8) / 8, sinks, ...window };
  if (!draw.chance(0.25)) return { inputs, attrs: { ...own, masked }, own };
  const dropout = { p: draw.pick([0.25, 0.5]), key: draw.seed(), sample: draw.int(0, 99) };
  const keep = keptBy(device, [batch, heads, seqQ, seqK], dropout);
  return { inputs, attrs: { ...own, masked, keep, factor: 1 / (1 - dropout.p) }, own: { ...own, dropout } };
}

function routeFuzz(draw: Draw) {
  const scoring = draw.pick(OPS.scoring);
  const isMixer = scoring === "sparseMixer";
  const groups = isMixer ? 1 : draw.pick([1, 1, 2]);
  const size = draw.int(3, 4);
  const [experts, topGroups] = [groups * size, draw.int(1, groups)];
  const topK = isMixer ? 2 : draw.int(1, Math.min(3, topGroups * size));
  const groupBest: 1 | 2 = draw.pick([1, 2] as const);
  const logits = { shape: [draw.size(), experts], data: { kind: "distinct" } } as const;
  const bias = { shape: [experts], data: { kind: "unit" }, dtype: float32, requiresGrad: false } as const;
  const sampled = isMixer && draw.chance(0.5);
  const noise = {
    ...{ shape: [logits.shape[0] ?? 0, topK, 2, experts], data: { kind: "unit" } } as const,
    ...{ dtype: float32, requiresGrad: false },
  };
  const inputs = sampled ? [logits, noise] : !isMixer && draw.chance(0.3) ? [logits, bias] : [logits];
  const attrs = {
    topK,
    scoring,
    normalize: !isMixer && draw.chance(0.5),
    scale: draw.pick([1, 2.5]),
    groups,
    topGroups,
    groupBest,
  };
  return { inputs, attrs: { ...attrs, sampled, jitter: draw.pick([0, 0.01, 0.25]) } };
}

function gatedDeltaFuzz(draw: Draw) {
  const isLong = draw.chance(0.06);
  const keyHeads = isLong ? 1 : draw.int(1, 2);
  const valueHeads = keyHeads * (isLong ? 1 : draw.int(1, 2));
  const [keyDim, valueDim, batch] = isLong ? [2, 2, 1] : [draw.int(1, 3), draw.int(1, 3), draw.int(1, 2)];
  const seq = isLong ? draw.int(63, 67) : draw.size(6);
  const inputs = [
    small(batch, seq, keyHeads * keyDim),
    small(batch, seq, keyHeads * keyDim),
    signed(batch, seq, valueHeads * valueDim),
    { shape: [batch, seq, valueHeads], data: { kind: "negative" }, dtype: float32 } as const,
    { shape: [batch, seq, valueHeads], data: { kind: "unit" } } as const,
  ];
  return { inputs, attrs: { keyHeads, valueHeads, scale: draw.pick([1, 0.5]) } };
}

function ropeFuzz(draw: Draw) {
  const half = draw.int(1, 2);
  const start = draw.pick([0, 0, 1, 2]);
  const headDim = start + 2 * half + draw.pick([0, 0, 1]);
  const [batch, seq] = [draw.size(2), draw.size(4)];
  const positions = Math.max(seq, draw.int(4, 6));
  const table = { shape: [positions, half], data: { kind: "signed" }, dtype: float32, requiresGrad: false } as const;
  const at = draw.chance(0.5) ? [ints(positions, batch, seq)] : [];
  const inputs = [signed(batch, seq, draw.int(1, 3) * headDim), table, { ...table, data: { kind: "small" } } as const];
  return { inputs: [...inputs, ...at], attrs: { headDim, start, interleaved: draw.chance(0.5) } };
}

function pairs(draw: Draw): { rows: number; topK: number; width: number; places: InputDraw } {
  const [rows, topK, width] = [draw.size(4), draw.int(1, 3), draw.size(4)];
  return { rows, topK, width, places: listed(draw.order(rows * topK), rows, topK) };
}

function groupedFuzz(draw: Draw) {
  const [groups, width, out] = [draw.int(1, 3), draw.size(4), draw.size(4)];
  const counts = Array.from({ length: groups }, () => draw.int(0, 3));
  const ends = counts.map((_, i) => counts.slice(0, i + 1).reduce((sum, count) => sum + count, 0));
  const layout = draw.pick(LAYOUTS);
  const weight = layout === "outIn" ? signed(groups, out, width) : signed(groups, width, out);
  const rows = counts.reduce((sum, count) => sum + count, 0);
  const inputs = [signed(rows, width), weight, listed(ends, groups), ...draw.chance(0.5) ? [signed(groups, out)] : []];
  return { inputs, attrs: { layout }, own: layout };
}

function normInputs(draw: Draw, most: number): InputDraw[] {
  const cols = draw.int(1, 7);
  const rows = draw.shape(0, 2);
  return [
    { shape: [...rows, cols], data: { kind: "distinct" } },
    ...Array.from({ length: draw.int(0, most) }, () => signed(cols)),
  ];
}

function linearFuzz(draw: Draw) {
  const [rows, width, out] = [draw.shape(0, 2), draw.size(), draw.size()];
  const layout = draw.pick(LAYOUTS);
  const weight = layout === "outIn" ? signed(out, width) : signed(width, out);
  return {
    inputs: [signed(...rows, width), weight, ...draw.chance(0.5) ? [signed(out)] : []],
    attrs: { layout },
    own: layout,
  };
}

function matmulFuzz(draw: Draw) {
  const lead = draw.shape(0, 2).map((size) => Math.min(size, 3));
  const [m, k, n] = [draw.size(4), draw.size(4), draw.size(4)];
  const inputs = [signed(...draw.broadcastable(lead), m, k), signed(...draw.broadcastable(lead), k, n)];
  return { inputs, attrs: {}, own: undefined };
}

function linearLossFuzz(draw: Draw) {
  const [rows, width, classes] = [draw.shape(0, 2), draw.int(1, 4), draw.int(1, 5)];
  const { input, ignoreIndex } = labelsOf(draw, classes, rows);
  const inputs = [signed(...rows, width), signed(classes, width), input, ...draw.chance(0.5) ? [signed(classes)] : []];
  return { inputs, attrs: { ignoreIndex } };
}

const lastDim = (draw: Draw, _: DType) => ({ inputs: [signed(...draw.shape(1))], attrs: {}, own: undefined });

/** Fuzzed ops by name. */
export const LAYER_FUZZ: readonly (readonly [string, FuzzOp])[] = [
  [
    "attention",
    {
      record: attentionOp,
      draw: (draw, _, device) => {
        const { inputs, attrs, own } = attentionFuzz(draw, device);
        return { inputs, attrs, run: (tensors) => apply(attentionOp, tensors, own) };
      },
    },
  ],
  ["route", fuzzOf(routeOp, routeFuzz)],
  // A gradient of g is a sum over all later tokens of a chunk, of differences; a leaf may be the g of all tokens.
  ["gatedDeltaRule", { ...fuzzOf(gatedDeltaOp, gatedDeltaFuzz), roundings: 4 }],
  ["rope", fuzzOf(ropeOp, ropeFuzz)],
  ["groupedLinear", fuzzNamed(groupedLinearOp, groupedFuzz)],
  ["linear", fuzzNamed(linearOp, linearFuzz)],
  ["matmul", fuzzNamed(matmulOp, matmulFuzz)],
  ["softmax", fuzzNamed(softmaxOp, lastDim)],
  ["logSoftmax", fuzzNamed(logSoftmaxOp, lastDim)],
  ["linearCrossEntropy", fuzzOf(linearCrossEntropyOp, linearLossFuzz)],
  [
    "crossEntropy",
    fuzzOf(crossEntropyOp, (draw) => {
      const [rows, classes] = [draw.shape(0, 2), draw.int(1, 6)];
      const { input, ignoreIndex } = labelsOf(draw, classes, rows);
      return { inputs: [signed(...rows, classes), input], attrs: { ignoreIndex } };
    }),
  ],
  ["tokenScores", fuzzOf(tokenScoresOp, linearLossFuzz)],
  [
    "logitScores",
    fuzzOf(logitScoresOp, (draw) => {
      const [rows, classes] = [draw.shape(0, 2), draw.int(1, 6)];
      const { input, ignoreIndex } = labelsOf(draw, classes, rows);
      return { inputs: [{ ...signed(...rows, classes), dtype: float32 }, input], attrs: { ignoreIndex } };
    }),
  ],
  [
    "rmsNorm",
    fuzzOf(rmsNormOp, (draw) => ({
      inputs: normInputs(draw, 1),
      attrs: { eps: draw.pick([1e-6, 1e-2]), zeroCentered: draw.chance(0.5) },
    })),
  ],
  [
    "layerNorm",
    fuzzNamed(layerNormOp, (draw) => {
      const own = draw.pick([1e-5, 1e-2]);
      return { inputs: normInputs(draw, 2), attrs: { eps: own }, own };
    }),
  ],
  [
    "embedding",
    fuzzOf(embeddingOp, (draw) => {
      const vocab = draw.int(1, 6);
      const inputs = [signed(vocab, draw.size()), ints(vocab, ...draw.shape(0, 2))];
      return { inputs, attrs: { paddingIdx: draw.chance(0.5) ? -1 : draw.int(0, vocab - 1) } };
    }),
  ],
  [
    "causalConv",
    fuzzNamed(causalConvOp, (draw) => {
      const channels = draw.int(1, 4);
      const inputs = [signed(draw.int(1, 3), draw.int(1, 5), channels), signed(channels, 1, draw.int(1, 4))];
      return { inputs, attrs: {}, own: undefined };
    }),
  ],
  [
    "sortPairs",
    fuzzOf(sortPairsOp, (draw) => {
      const numExperts = draw.int(1, 5);
      return { inputs: [ints(numExperts, draw.size(), draw.int(1, 3))], attrs: { numExperts } };
    }, [int32]),
  ],
  [
    "dispatch",
    fuzzNamed(dispatchOp, (draw) => {
      const { rows, width, places } = pairs(draw);
      return { inputs: [signed(rows, width), places], attrs: {}, own: undefined };
    }),
  ],
  [
    "combine",
    fuzzNamed(combineOp, (draw) => {
      const { rows, topK, width, places } = pairs(draw);
      const weights = { ...signed(rows, topK), dtype: float32 };
      return { inputs: [signed(rows * topK, width), places, weights], attrs: {}, own: undefined };
    }),
  ],
  [
    "clampedSwiglu",
    fuzzOf(clampedSwigluOp, (draw) => ({
      inputs: [signed(draw.size(), 2 * draw.size())],
      attrs: { alpha: 1.702, limit: draw.pick([0.5, 1, 7]) },
    })),
  ],
];
