/** The ranks' code of `adapters_test.ts`. @module */
import { createHash } from "node:crypto";
import { loadAdapterWeights } from "../../src/adapters/files.ts";
import { getModelStateDict } from "../../doors/checkpoint.ts";
import { ownedPtr, writeParameters } from "../../doors/nn.ts";
import {
  addLora,
  evaluate,
  fullyShard,
  mergeLora,
  openModel,
  parallelizeModule,
  saveAdapter,
  scope,
  SGD,
  tensorPlanOf,
} from "../../mod.ts";
import { batchOf, type FamilyOrders, laidOut } from "../../scripts/axes/training.ts";
import { Run } from "../../src/train/run.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Digest of all values of a model. */
function digestOf(model: Parameters<typeof getModelStateDict>[0], { group }: WorldRank): string {
  const hash = createHash("sha256");
  for (const [name, { toArray }] of [...getModelStateDict(model, { group, fullStateDict: true })].sort()) {
    hash.update(name).update(new Uint8Array(toArray().buffer));
  }
  return hash.digest("hex").slice(0, 12);
}

/** Saves a new adapter into a folder, then merges it. @returns the digest of the merged model, and its loss before and after */
export async function saveAndMerge(
  rank: WorldRank,
  { folder, ...orders }: FamilyOrders & { readonly folder: string },
): Promise<readonly [merged: string, before: number, after: number]> {
  const { run, model } = await laidOut(rank, { ...orders, lora: true });
  await saveAdapter(model, folder, rank.group);
  const { loss: before } = await evaluate(run, model, [batchOf(run, model, 1)]);
  mergeLora(model, rank.group);
  const { loss: after } = await evaluate(run, model, [batchOf(run, model, 1)]);
  return [digestOf(model, rank), before, after];
}

/** Loads an adapter from a folder. @returns the digest of the model with it */
export async function loadFrom(
  rank: WorldRank,
  { folder, ...orders }: FamilyOrders & { readonly folder: string },
): Promise<string> {
  const { model, adapter } = await laidOut(rank, { ...orders, lora: true });
  if (adapter === undefined) throw new Error("no adapter");
  writeParameters([...model.parameters()].filter(({ requiresGrad }) => requiresGrad), (factor) => {
    const { device, storage: { shard: { numel } } } = factor;
    device.copyIn(ownedPtr(factor), new Uint8Array(4 * numel));
  });
  await loadAdapterWeights(adapter, folder, rank.group);
  return digestOf(model, rank);
}

/** Losses of steps whose adapters of columns drop out. */
export async function dropOut(
  { device, group }: WorldRank,
  { config, axes }: FamilyOrders,
): Promise<readonly number[]> {
  const run = new Run({ device, group, axes, print: () => undefined });
  const model = await openModel(run, config, { seed: 3 });
  addLora(model, { r: 3, loraAlpha: 30, loraDropout: 0.4, targetModules: ["q_proj", "up_proj"] });
  if (run.mesh.axes.includes("tensor")) parallelizeModule(model, run.mesh.get("tensor"), tensorPlanOf(model));
  fullyShard(model, { mesh: run.mesh.get("shard") });
  await model.load();
  const sgd = new SGD([...model.parameters()].filter(({ requiresGrad }) => requiresGrad), { learningRate: 1 });
  return Array.from({ length: 3 }, (_, step) => {
    using _frame = scope();
    const loss = run.backward(model, batchOf(run, model, step)).item();
    sgd.step();
    sgd.zeroGrad();
    return loss;
  });
}

rankFunctions(import.meta.url, { saveAndMerge, loadFrom, dropOut });
