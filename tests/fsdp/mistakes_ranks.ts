/** The ranks' code of `mistakes_test.ts`. @module */
import { replicate } from "../../src/ddp/replicate.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { Linear } from "../../src/nn/linear.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { openModel } from "../../src/train/open_model.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { SIZES } from "../train/loop_ranks.ts";

/** The parallelism of a layer. */
export type Mode = "fsdp" | "ddp";

/** Two backwards, before the second of which rank 1 does something that rank 0 does not; what each rank is told. */
export function differ(
  { group, device, rank }: WorldRank,
  [mode, mistake]: [Mode, "freezes" | "skips a step"],
): string {
  const layer = new Linear(device, 4, 4);
  layer.nameTree();
  (mode === "fsdp" ? fullyShard : replicate)(layer, { mesh: group });
  initializeParameters(layer, 1);
  const optimizer = new SGD(layer.parameters(), { learningRate: 0.1 });
  const backward = (): void => {
    using _frame = scope();
    layer.zeroGrad();
    layer.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
  };
  return messageOf(() => {
    backward();
    if (rank === 0 || mistake !== "skips a step") optimizer.step();
    if (rank === 1 && mistake === "freezes") layer.weight.requiresGrad = false;
    backward();
    optimizer.step();
  });
}

/** Every rank draws from a seed of its own. */
export async function drawDifferently({ group, device, rank }: WorldRank, mode: Mode): Promise<string> {
  const model = await openModel({ device, group }, SIZES, { seed: rank });
  (mode === "fsdp" ? fullyShard : replicate)(model, { mesh: group });
  return await model.load().then(() => "", (error) => `${error}`);
}

rankFunctions(import.meta.url, { differ, drawDifferently });
