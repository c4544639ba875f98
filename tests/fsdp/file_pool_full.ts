/** A step whose optimizer states have no room in their file. Started by `file_pool_test.ts`. @module */
import process from "node:process";
import { AdamW, cpuOffloadPolicy, fullyShard, scope } from "../../mod.ts";
import { openFilePool } from "../../doors/device.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

const [directory = ""] = process.argv.slice(2);
const { device, group } = await openRank();
using optimizerStates = await openFilePool(directory);
const model = new Stack(device, 64, 1);
fullyShard(model, { mesh: group, offloadPolicy: cpuOffloadPolicy({ optimizerStates }) });
initializeParameters(model, 5);
const optimizer = new AdamW(model.parameters());
const values = (): string => JSON.stringify([...model.parameters()].map((parameter) => [...ownedValues(parameter)]));
const before = values();
{
  using _frame = scope();
  model.call(input(device, "x", 3, 64)).sum().backward();
}
process.stdout.write(`${messageOf(() => optimizer.step())}\n`);
const { inUse } = optimizerStates.allocator.stats;
process.stdout.write(
  `weights as before: ${values() === before}, states: ${inUse} bytes, steps: ${optimizer.stepsTaken}\n`,
);
