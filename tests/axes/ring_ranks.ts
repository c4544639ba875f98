/** Ranks of `ring_test.ts`. @module */
import { type CausalLm, dryRun, int32, openModel, parallelizeContext, scope, type Tensor, tensor } from "../../mod.ts";

import { attention } from "../../doors/nn.ts";
import { type AxesRank, type FamilyOrders, laidOut } from "../../scripts/axes/training.ts";
import { attentionOfHeads } from "../../src/axes/heads.ts";
import { zigzag } from "../../src/axes/positions.ts";
import { attentionRoundRing } from "../../src/axes/ring.ts";
import { dtypeFrom } from "../../src/dtype.ts";
import { twinOf } from "../../src/comm/data/dry.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { Run } from "../../src/train/run.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import type { AttentionCase, AttentionInputs, AttentionValues } from "./float64_attention.ts";

/** An attention of rows that ranks share. */
export interface SharedAttention {
  readonly sizes: AttentionCase;
  readonly inputs: AttentionInputs;
  readonly dtype: "float32" | "bfloat16";
  /** @default ring */
  readonly strategy?: "ring" | "ulysses";
}

/** Elements of [batch, seq, width] at the positions of a rank, in its order. */
export function ownOf(
  values: readonly number[],
  { batch, seq }: Pick<AttentionCase, "batch" | "seq">,
  place: { readonly rank: number; readonly size: number },
): readonly number[] {
  const [rowLength, part] = [values.length / batch, values.length / batch / (2 * place.size)];
  if (seq % (2 * place.size) !== 0) throw new Error("parts of unequal lengths");
  return Array.from(
    { length: batch },
    (_, row) =>
      zigzag(place).flatMap((piece) =>
        values.slice(row * rowLength + piece * part, row * rowLength + (piece + 1) * part)
      ),
  ).flat();
}

/** Outputs and gradients of this rank's positions; on one rank by the library's attention. */
export function attend({ device, group }: WorldRank, orders: SharedAttention): AttentionValues {
  const { sizes, inputs, dtype, strategy = "ring" } = orders;
  const { batch, seq, heads, kvHeads, headDim, valueDim, window, softcap } = sizes;
  const place = { rank: group.rank, size: group.size };
  const isAlone = group.size === 1;
  const own = (values: readonly number[]): readonly number[] => isAlone ? values : ownOf(values, sizes, place);
  const positions = seq / group.size;
  const leafOf = (values: readonly number[], width: number) =>
    leaf(device, { shape: [batch, positions, width], data: [...own(values)] });
  const leaves = [
    leafOf(inputs.q, heads * headDim),
    leafOf(inputs.k, kvHeads * headDim),
    leafOf(inputs.v, kvHeads * valueDim),
  ];
  const sinks = sizes.sinks && leaf(device, { shape: [heads], data: [...sizes.sinks] });
  try {
    using _frame = scope();
    const to = (x: Tensor): Tensor => x.to(dtypeFrom(dtype));
    const [q, k, v] = leaves.map(to);
    if (q === undefined || k === undefined || v === undefined) throw new Error("no leaves");
    const starts = sizes.starts &&
      tensor(device, own(sizes.starts), { shape: [batch, positions], dtype: int32 });
    const attrs = { heads, kvHeads, causal: true, scale: 1 / Math.sqrt(headDim), window, softcap };
    const hear = isAlone
      ? attention
      : strategy === "ring"
      ? attentionRoundRing(group, "test")
      : attentionOfHeads(group, "test");
    const out = hear(q, k, v, attrs, undefined, sinks && to(sinks), starts);
    const seed = tensor(device, own(inputs.seed), { shape: out.shape });
    out.to(seed.dtype).mul(seed).sum().backward();
    const gradientOf = ({ grad }: typeof leaves[number]): number[] => {
      if (grad === undefined) throw new Error("a leaf has no gradient");
      return Array.from(grad.toArray(), Number);
    };
    const [dq = [], dk = [], dv = []] = leaves.map(gradientOf);
    return { out: Array.from(out.toArray(), Number), dq, dk, dv, dsinks: sinks === undefined ? [] : gradientOf(sinks) };
  } finally {
    for (const one of [...leaves, ...sinks === undefined ? [] : [sinks]]) disposeLeaf(one);
  }
}

/** Several attentions, one after the other, and the bytes that they leave. */
export function attendAll(rank: WorldRank, all: readonly SharedAttention[]): {
  readonly values: readonly AttentionValues[];
  readonly left: number;
} {
  const { allocator } = rank.device;
  const before = allocator.stats.inUse;
  const values = all.map((orders) => attend(rank, orders));
  return { values, left: allocator.stats.inUse - before };
}

/** A model whose rows are long beside its width. */
async function longRows(
  rank: AxesRank,
  orders: FamilyOrders,
): Promise<{ readonly run: Run; readonly step: () => void }> {
  const { run, model } = await laidOut(rank, orders);
  const seq = model.maxPositions;
  const inputIds = new Int32Array(2 * seq).fill(1);
  const batch = { microBatches: [{ inputIds, labels: inputIds, batch: 2, seq }] };
  const step = (): void => {
    run.backward(model, batch).dispose();
    for (const parameter of model.parameters()) parameter.zeroGrad();
  };
  return { run, step };
}

/** This rank's peak of a step beyond what the model takes, and the whole peak beside that of a dry run. */
export async function peaks(
  rank: WorldRank,
  orders: FamilyOrders,
): Promise<{ readonly beyond: number; readonly peak: number; readonly stated: number }> {
  const { run, step } = await longRows(rank, orders);
  step();
  const { allocator } = rank.device;
  const { inUse } = allocator.stats;
  allocator.resetPeak();
  step();
  const { peakBytes: peak } = memoryPeak(run);
  const beyond = allocator.stats.peak - inUse;
  const dry = async ({ device, group }: Run): Promise<() => void> => (await longRows({ device, group }, orders)).step;
  const place = { rank: rank.group.rank, worldSize: rank.group.size, device: rank.device, ...twinOf(rank.group) };
  const { peakBytes: stated } = await dryRun(dry, place);
  return { beyond, peak, stated };
}

/** The errors of strategies and calls that are refused. */
export async function refusals(
  { device, group }: WorldRank,
  config: FamilyOrders["config"],
): Promise<readonly string[]> {
  const run = new Run({ device, group, axes: { shard: 1, context: group.size }, print: () => undefined });
  const axis = run.mesh.get("context");
  const open = (): Promise<CausalLm> => openModel(run, config, { seed: 3 });
  const [first, second] = [await open(), await open()];
  const unknown: { readonly commStrategy: "ring" } = JSON.parse('{"commStrategy":"alltoall"}');
  using _frame = scope();
  const x = tensor(device, new Float32Array(16), { shape: [1, 4, 4] });
  const mask = tensor(device, [1, 1, 1, 1], { shape: [1, 4], dtype: int32 }).ne(0);
  const attrs = { heads: 1, kvHeads: 1, causal: true, scale: 1 };
  const ring = attentionRoundRing(group, "layers.0");
  return [
    messageOf(() => parallelizeContext(first, axis, unknown)),
    messageOf(() => parallelizeContext(second, axis, { commStrategy: "ulysses" })),
    messageOf(() => ring(x, x, x, attrs, mask)),
    messageOf(() => ring(x, x, x, { ...attrs, dropout: { p: 0.5, key: 1, sample: 0 } })),
    messageOf(() => ring(x, x, x, { ...attrs, causal: false })),
    messageOf(() => attentionOfHeads(group, "layers.0")(x, x, x, attrs)),
  ];
}

rankFunctions(import.meta.url, { attendAll, peaks, refusals });
