/** A loop of one's own, of three steps, that prints the bytes of its calls from the first step on, by kind. @module */
import process from "node:process";
import { AdamW, fullyShard, launch, openModel, scope } from "../../../mod.ts";
import { microBatch, SIZES } from "../loop_ranks.ts";

await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
const model = await openModel(run, SIZES);
for (const block of model.layers) fullyShard(block, { mesh: run.mesh });
fullyShard(model, { mesh: run.mesh });
await model.load();
const optimizer = new AdamW(model.parameters());
const counters: Record<string, number> = {};
run.group.observe(({ kind, count, dtype }) => {
  counters[kind] = (counters[kind] ?? 0) + count * (dtype?.byteLength ?? 1);
});
for (let step = 1; step <= 3; step++) {
  using _frame = scope();
  optimizer.zeroGrad();
  run.backward(model, { microBatches: [microBatch(run.group.rank + step, 0)], step });
  optimizer.step();
}
if (process.argv[2] === "throw" && run.group.rank === 1) throw new RangeError("out of tea");
process.stdout.write(`${JSON.stringify(counters)}\n`);
