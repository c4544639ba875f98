/** The ranks' code of `offload_test.ts`. @module */
import {
  AdamW,
  clipGradNorm,
  cpuOffloadPolicy,
  fullyShard,
  int32,
  type OffloadPolicy,
  scope,
  tensor,
} from "../../mod.ts";
import { openFilePool } from "../../doors/device.ts";
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { SIZES } from "../train/loop_ranks.ts";

/**
 * Saves an offloaded model, whose optimizer states are in a file, after a step, and loads it without offload, with it, and with the
 * states in a file: whether all is the same, then and a step later.
 */
export async function saveAndLoadOffloaded(
  { device, group }: WorldRank,
  directory: string,
): Promise<{ readonly same: boolean; readonly resumed: boolean }> {
  using optimizerStates = await openFilePool(directory);
  const open = (offloadPolicy: OffloadPolicy | undefined, seed: number) => {
    const model = buildModel(device, SIZES);
    const options = { mesh: group, ...offloadPolicy === undefined ? {} : { offloadPolicy } };
    for (const block of model.layers) fullyShard(block, options);
    fullyShard(model, options);
    initializeParameters(model, seed);
    return { model, optimizer: new AdamW(model.parameters()) };
  };
  const step = ({ model, optimizer }: ReturnType<typeof open>): void => {
    using _frame = scope();
    optimizer.zeroGrad();
    const { logits } = model.call({ inputIds: tensor(device, [1, 2, 3], { shape: [1, 3], dtype: int32 }) });
    logits?.sum().backward();
    clipGradNorm(model.parameters(), 1);
    optimizer.step();
  };
  const valuesOf = ({ model }: ReturnType<typeof open>): string =>
    JSON.stringify([...model.parameters()].map((parameter) => [...ownedValues(parameter)]));
  const inFile = cpuOffloadPolicy({ optimizerStates });
  const saved = open(inFile, 1);
  step(saved);
  await saveCheckpoint({ directory, step: 1, ...saved, group, state: {} });
  const all = [saved, open(undefined, 2), open(cpuOffloadPolicy(), 3), open(inFile, 4)];
  for (const one of all.slice(1)) await loadCheckpoint({ directory, ...one, group });
  const same = new Set(all.map(valuesOf)).size === 1;
  for (const one of all) step(one);
  return { same, resumed: new Set(all.map(valuesOf)).size === 1 };
}

rankFunctions(import.meta.url, { saveAndLoadOffloaded });
