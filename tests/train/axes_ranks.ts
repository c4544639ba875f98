/** The ranks' code of `axes_test.ts`. @module */
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import type { DeviceMesh, MeshShape } from "../../src/comm/mesh.ts";
import { clipGradNorm } from "../../src/optim/clip.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { scope } from "../../src/tensor/scope.ts";
import { evaluate } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { SIZES } from "./loop_ranks.ts";

/** The axes of a run, the axis to shard over, and the text that it reads. */
export interface AxesOrders {
  readonly axes: MeshShape;
  readonly shard: string | readonly string[];
  readonly text: string;
}

/** The results of a rank. */
export interface AxesReport {
  readonly data: readonly number[];
  readonly samples: { readonly rank: number; readonly size: number };
  /** Tokens that it read. */
  readonly tokens: readonly (readonly number[])[];
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  readonly evaluated: readonly number[];
  readonly weights: readonly number[];
}

/** Trains two steps on text. */
export async function trainOnText({ device, group }: WorldRank, orders: AxesOrders): Promise<AxesReport> {
  const run = new Run({ device, group, axes: orders.axes, print: () => undefined });
  const model = await openModel(run, { ...SIZES, vocab_size: 257 }, { seed: 3 });
  const { shard } = orders;
  const mesh = typeof shard === "string" ? run.mesh.get(shard) : run.mesh.flatten(shard, "flat");
  for (const block of model.layers) fullyShard(block, { mesh });
  fullyShard(model, { mesh });
  await model.load();
  using text = await textData(run, model, orders.text, { sequenceLength: 12, batch: 4, microBatches: 1 });
  const optimizer = new SGD([...model.parameters()], { learningRate: 0.3, momentum: 0.9 });
  const [tokens, losses, norms]: [number[][], number[], number[]] = [[], [], []];
  for await (const batch of text.take(2)) {
    using _frame = scope();
    tokens.push(batch.microBatches.flatMap(({ inputIds }) => [...inputIds]));
    optimizer.zeroGrad();
    losses.push(run.backward(model, batch).item());
    norms.push(clipGradNorm(model.parameters(), 0.1).item());
    optimizer.step();
  }
  const { loss, tokens: count } = await evaluate(run, model, text);
  const weights = [...model.parameters()].flatMap((parameter) => [...ownedValues(parameter)]);
  return { data: run.data.worldRanks, samples: run.samples, tokens, losses, norms, evaluated: [loss, count], weights };
}

/** The error of gradients that are summed over other ranks than the loss. */
export async function shardOver({ device, group }: WorldRank, over: string): Promise<readonly string[]> {
  const run = new Run({ device, group, axes: { replicate: 2, shard: 1, tensor: 2 }, print: () => undefined });
  const meshes: Readonly<Record<string, () => DeviceMesh | Run["group"]>> = {
    shard: () => run.mesh.get("shard"),
    all: () => run.group,
    both: () => run.mesh.slice(["replicate", "shard"]),
    flat: () => run.mesh.flatten(["replicate", "shard"], "flat"),
  };
  const mesh = meshes[over]?.() ?? run.group;
  const model = await openModel(run, SIZES, { seed: 3 });
  fullyShard(model, { mesh });
  await model.load();
  const microBatch = { inputIds: Int32Array.of(1, 2), labels: Int32Array.of(2, 3), batch: 1, seq: 2 };
  return [messageOf(() => run.backward(model, { microBatches: [microBatch] }))];
}

/** The error of a model that is not divided over a run's context axis. */
export async function computeAll({ device, group }: WorldRank): Promise<string> {
  const run = new Run({ device, group, axes: { shard: 1, context: 2 }, print: () => undefined });
  const model = await openModel(run, { ...SIZES, vocab_size: 257 }, { seed: 3 });
  fullyShard(model, { mesh: run.mesh.flatten(["shard", "context"], "both") });
  await model.load();
  const tokens = new Int32Array(8).fill(1);
  try {
    using _frame = scope();
    run.backward(model, { microBatches: [{ inputIds: tokens, labels: tokens, batch: 1, seq: 8 }] });
    return "";
  } catch (error) {
    return String(error);
  }
}

rankFunctions(import.meta.url, { trainOnText, shardOver, computeAll });
