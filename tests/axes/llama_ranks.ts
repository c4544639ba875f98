/** The ranks' code of `llama_test.ts`. @module */
import { createHash } from "node:crypto";
import { getModelStateDict, loadHfWeights, saveHfDirectory } from "../../doors/checkpoint.ts";
import type { MeshShape } from "../../doors/comm.ts";
import {
  AdamW,
  addLora,
  applyActivationCheckpointing,
  type CausalLm,
  clipGradNorm,
  fullyShard,
  generate,
  parallelizeModule,
  type ParallelizePlan,
  replicate,
  scope,
} from "../../mod.ts";
import { evaluate } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** A small Llama with grouped heads. */
export const LLAMA: Readonly<Record<string, string | number | boolean>> = {
  ...{ model_type: "llama", vocab_size: 64, hidden_size: 32, intermediate_size: 56, num_hidden_layers: 2 },
  ...{ num_attention_heads: 8, num_key_value_heads: 4, max_position_embeddings: 32, initializer_range: 0.2 },
};

/** The plan of Llama. */
export const PLAN: ParallelizePlan = {
  "model.layers.*.self_attn.q_proj": "colwise",
  "model.layers.*.self_attn.k_proj": "colwise",
  "model.layers.*.self_attn.v_proj": "colwise",
  "model.layers.*.self_attn.o_proj": "rowwise",
  "model.layers.*.mlp.gate_proj": "colwise",
  "model.layers.*.mlp.up_proj": "colwise",
  "model.layers.*.mlp.down_proj": "rowwise",
};

/** The model that is trained, and the axes. */
export interface LlamaOrders {
  readonly axes: MeshShape;
  readonly config?: Readonly<Record<string, string | number | boolean>>;
  readonly steps: number;
  readonly mode?: "fsdp" | "ddp";
  readonly checkpointing?: boolean;
  readonly from?: string;
  readonly to?: string;
}

/** The results of a training. */
export interface LlamaReport {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  readonly first: string;
  readonly last: string;
  readonly evaluated: number;
  readonly generated: readonly number[];
  /** Digest of what this rank keeps of parameters that no axis cuts. */
  readonly uncut: string;
  /** Calls of a step over the tensor axis, by what they are for. */
  readonly calls: readonly string[];
  /** Bytes in use after each step. */
  readonly inUse: readonly number[];
}

function digestOf(model: CausalLm, { group }: WorldRank): string {
  const hash = createHash("sha256");
  const state = getModelStateDict(model, { group, fullStateDict: true });
  for (const [name, { shape, toArray }] of [...state].sort(([a], [b]) => a < b ? -1 : 1)) {
    hash.update(`${name} ${shape}`).update(new Uint8Array(toArray().buffer));
  }
  return hash.digest("hex").slice(0, 12);
}

/** This rank's half of 4 rows, or all of them. */
function batchOf({ samples: { rank, size } }: Run, step: number) {
  const [rows, seq] = [4, 10];
  const ids = Int32Array.from({ length: rows * seq }, (_, i) => (step * 31 + i * i * 7 + i) % 64);
  const targets = ids.map((id, i) => i % 7 === 3 ? -100 : (id * 5 + 3) % 64);
  const [begin, end] = [rank * rows / size * seq, (rank + 1) * rows / size * seq];
  const [own, labels] = [ids.subarray(begin, end), targets.subarray(begin, end)];
  return {
    microBatches: [{
      inputIds: own,
      labels,
      batch: rows / size,
      seq,
      random: { seed: 1, firstSample: step * rows + rank * rows / size },
    }],
  };
}

/** Trains with clipping, evaluates and generates. */
export async function trainLlama(rank: WorldRank, orders: LlamaOrders): Promise<LlamaReport> {
  const { axes, config = {}, steps, mode = "fsdp", from, to, checkpointing = false } = orders;
  const { device, group } = rank;
  const run = new Run({ device, group, axes, print: () => undefined });
  const model = await openModel(run, { ...LLAMA, ...config }, { seed: 3 });
  const names = run.mesh.axes;
  if (names.includes("tensor")) parallelizeModule(model, run.mesh.get("tensor"), PLAN);
  if (checkpointing) applyActivationCheckpointing(model.layers);
  const mesh = names.includes("replicate") ? run.mesh.slice(["replicate", "shard"]) : run.mesh.get("shard");
  if (mode === "ddp") replicate(model, { mesh });
  else for (const module of [...model.layers, model]) fullyShard(module, { mesh });
  if (from === undefined) await model.load();
  else await loadHfWeights(model, from, group);
  const first = digestOf(model, rank);
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-2, weightDecay: 0.1 });
  const [losses, norms, inUse]: [number[], number[], number[]] = [[], [], []];
  const calls: string[] = [];
  for (let step = 0; step < steps; step++) {
    using _frame = scope();
    const end = group.observe(({ kind, unit }, over) => {
      const isTensor = names.includes("tensor") && over === run.mesh.axis("tensor");
      if (step === 1 && isTensor && kind === "all-reduce") calls.push(unit);
    });
    optimizer.zeroGrad();
    losses.push(run.backward(model, batchOf(run, step)).item());
    norms.push(clipGradNorm(model.parameters(), 0.2).item());
    optimizer.step();
    end();
    inUse.push(device.allocator.stats.inUse);
  }
  if (to !== undefined) await saveHfDirectory(model, to, group);
  const { loss } = await evaluate(run, model, [batchOf(run, 100)]);
  const generated = generate(model, [1, 2, 3], { maxNewTokens: 8, temperature: 0 });
  const uncut = createHash("sha256");
  for (const parameter of model.parameters()) {
    if (parameter.placements.length === 0) uncut.update(new Uint8Array(ownedValues(parameter).buffer));
  }
  return {
    ...{ losses, norms, first, last: digestOf(model, rank), evaluated: loss, generated },
    ...{ uncut: uncut.digest("hex").slice(0, 12), calls, inUse },
  };
}

/** The error of a plan that does not fit a model, and the model's first layer after it. */
export async function refusePlan(
  { device, group }: WorldRank,
  [config, plan]: [Readonly<Record<string, unknown>>, Readonly<Record<string, string>>],
): Promise<string> {
  const run = new Run({ device, group, axes: { shard: 1, tensor: group.size }, print: () => undefined });
  const model = await openModel(run, config);
  const before = [...model.parameters()].map(({ shape }) => `${shape}`).join(" ");
  // Styles come from files too, where nothing checks their types.
  const error = messageOf(() => Reflect.apply(parallelizeModule, undefined, [model, run.mesh.get("tensor"), plan]));
  const after = [...model.parameters()].map(({ shape }) => `${shape}`).join(" ");
  return `${error}${before === after ? "" : " CHANGED"}`;
}

/** Messages of a cut of a layer whose adapter drops out parts of its inputs, and of an adapter for a layer that is cut. */
export async function refuseAdapters(
  { device, group }: WorldRank,
  plan: Readonly<Record<string, string>>,
): Promise<readonly [cut: string, adapter: string]> {
  const run = new Run({ device, group, axes: { shard: 1, tensor: group.size }, print: () => undefined });
  const parallelize = (model: CausalLm): void =>
    Reflect.apply(parallelizeModule, undefined, [model, run.mesh.get("tensor"), plan]);
  const adapted = await openModel(run, LLAMA);
  addLora(adapted, { targetModules: ["down_proj"], loraDropout: 0.1 });
  const cut = await openModel(run, LLAMA);
  parallelize(cut);
  return [messageOf(() => parallelize(adapted)), messageOf(() => addLora(cut, { targetModules: ["down_proj"] }))];
}

rankFunctions(import.meta.url, { trainLlama, refusePlan, refuseAdapters });
