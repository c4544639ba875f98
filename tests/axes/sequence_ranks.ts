/** The ranks' code of `sequence_test.ts`. @module */
import { createHash } from "node:crypto";
import { getModelStateDict } from "../../doors/checkpoint.ts";
import type { MeshShape } from "../../doors/comm.ts";
import {
  AdamW,
  applyActivationCheckpointing,
  type CausalLm,
  clipGradNorm,
  evaluate,
  fullyShard,
  generate,
  openModel,
  parallelizeModule,
  scope,
  tensorPlanOf,
} from "../../mod.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** What is trained, on which rows. */
export interface SequenceOrders {
  readonly config: Readonly<Record<string, unknown>>;
  readonly axes: MeshShape;
  readonly rows: readonly [batch: number, seq: number];
  readonly sequenceParallel: boolean;
  readonly checkpointing?: boolean;
}

/** What came of it. */
export interface SequenceReport {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  readonly last: string;
  /** Digest of this rank's copies of what is not cut. */
  readonly uncut: string;
  readonly evaluated: number;
  readonly generated: readonly number[];
  /** Kinds and names of the second step's calls over the tensor axis. */
  readonly calls: readonly string[];
  /** Largest number of bytes of activations. */
  readonly activations: number;
}

function digestOf(model: CausalLm, { group }: WorldRank): string {
  const hash = createHash("sha256");
  for (const [name, { toArray }] of [...getModelStateDict(model, { group, fullStateDict: true })].sort()) {
    hash.update(name).update(new Uint8Array(toArray().buffer));
  }
  return hash.digest("hex").slice(0, 12);
}

/** Trains with clipping, evaluates rows of other lengths, and generates. */
export async function trainRows(rank: WorldRank, orders: SequenceOrders): Promise<SequenceReport> {
  const { config, axes, rows: [batch, seq], sequenceParallel, checkpointing = false } = orders;
  const { device, group } = rank;
  const run = new Run({ device, group, axes, print: () => undefined });
  const model = await openModel(run, config, { seed: 3 });
  const cut = run.mesh.axes.includes("tensor");
  if (cut) parallelizeModule(model, run.mesh.get("tensor"), tensorPlanOf(model, {}, { sequenceParallel }));
  if (checkpointing) applyActivationCheckpointing(model.layers);
  for (const module of [...model.layers, model]) fullyShard(module, { mesh: run.mesh.get("shard") });
  await model.load();
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-2 });
  const batchOf = (step: number, batch: number, seq: number) => {
    const inputIds = Int32Array.from({ length: batch * seq }, (_, i) => (step * 31 + i * i * 7 + i) % model.vocabSize);
    const labels = inputIds.map((id, i) => i % 7 === 3 ? -100 : (id * 5 + 3) % model.vocabSize);
    return { microBatches: [{ inputIds, labels, batch, seq }] };
  };
  const [losses, norms, calls]: [number[], number[], string[]] = [[], [], []];
  for (let step = 0; step < 3; step++) {
    using _frame = scope();
    const end = group.observe(({ kind, unit }, over) => {
      if (step === 1 && cut && over === run.mesh.axis("tensor")) calls.push(`${kind} ${unit}`);
    });
    device.allocator.resetPeak();
    losses.push(run.backward(model, batchOf(step, batch, seq)).item());
    norms.push(clipGradNorm(model.parameters(), 0.2).item());
    optimizer.step();
    optimizer.zeroGrad();
    end();
  }
  const { activations } = device.allocator.stats.peakTerms;
  const uncut = createHash("sha256");
  for (const parameter of model.parameters()) {
    if (parameter.placements.length === 0) uncut.update(new Uint8Array(ownedValues(parameter).buffer));
  }
  const { loss } = await evaluate(run, model, [batchOf(7, 1, 5), batchOf(8, 3, 3), batchOf(9, 2, 8)]);
  return {
    ...{ losses, norms, last: digestOf(model, rank), uncut: uncut.digest("hex").slice(0, 12), evaluated: loss },
    ...{ generated: generate(model, [1, 2, 3], { maxNewTokens: 6, temperature: 0 }), calls, activations },
  };
}

/** The errors of plans that share positions of some norms only, and of models that cannot share them. */
export async function mistakes(
  { device, group }: WorldRank,
  [llama, gpt2]: readonly SequenceOrders["config"][],
): Promise<readonly string[]> {
  const run = new Run({ device, group, axes: { shard: 1, tensor: group.size }, print: () => undefined });
  const axis = run.mesh.get("tensor");
  const model = await openModel(run, llama ?? {});
  const shared = tensorPlanOf(model, {}, { sequenceParallel: true });
  const { "model.norm": _, ...few } = shared;
  const errors = [
    messageOf(() => parallelizeModule(model, axis, few)),
    messageOf(() => parallelizeModule(model, axis, { ...shared, "lm_head": "sequence_parallel" })),
    messageOf(() => parallelizeModule(model.layers[0] ?? model, axis, { "input_layernorm": "sequence_parallel" })),
  ];
  const dropping = await openModel(run, gpt2 ?? {});
  errors.push(messageOf(() => tensorPlanOf(dropping, {}, { sequenceParallel: true })));
  const cut = parallelizeModule(model, axis, shared);
  errors.push([...model.parameters()].some(({ placements }) => placements.length > 0) ? "" : "not cut");
  cut();
  errors.push([...model.parameters()].some(({ placements }) => placements.length > 0) ? "still cut" : "");
  parallelizeModule(model, axis, shared); // as nothing is left of the first time
  return errors;
}

rankFunctions(import.meta.url, { trainRows, mistakes });
