/**
 * A rank that times optimizer steps of a model that all ranks compute together: `tensor.ts <case>`. Rank 0 prints the tokens a second of
 * the median step.
 *
 * @module
 */
import process from "node:process";
import { AdamW, launch, openModel, parallelizeModule, scope, tensorPlanOf } from "fullyshard";
import { modelOfCase } from "./models.ts";
import { threadsOfCase } from "./timing.ts";

const name = process.argv.at(-1) ?? "";
const { config, batch, seq, steps: { warmUp, timed } } = modelOfCase(name);
await using run = await launch({ axes: { tensor: -1 }, cpuMath: "native", threads: threadsOfCase() });
const model = await openModel(run, config);
parallelizeModule(model, run.mesh.get("tensor"), tensorPlanOf(model));
await model.load();
const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
const inputIds = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7919) % config.vocab_size);
const labels = inputIds.map((_, i) => (i + 1) % seq === 0 ? -100 : inputIds[i + 1] ?? NaN);
const times: number[] = [];
for (let step = 0; step < warmUp + timed; step++) {
  run.group.barrier("step");
  const started = performance.now();
  {
    using _step = scope();
    optimizer.zeroGrad();
    run.backward(model, { microBatches: [{ inputIds, labels, batch, seq }] });
    optimizer.step();
  }
  if (step >= warmUp) times.push(performance.now() - started);
}
const median = times.toSorted((a, b) => a - b)[timed >> 1] ?? NaN;
if (run.group.rank === 0) process.stdout.write(`${name} ${(batch * seq * 1000 / median).toFixed(1)}\n`);
