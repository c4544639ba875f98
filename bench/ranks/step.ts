/**
 * A rank that times optimizer steps; rank 0 prints the median after the name that is the last argument.
 *
 * @module
 */
import process from "node:process";
import { AdamW, bfloat16, float32, fullyShard, int32, replicate, scope, tensor } from "fullyshard";
import { buildModel, initializeParameters } from "fullyshard/nn";
import { openDevice } from "fullyshard/device";
import { openProcessGroup } from "fullyshard/comm";
import { resolveConfig, TRAIN_SECTIONS } from "fullyshard/config";
import { modelOfCase } from "./models.ts";
import { threadsOfCase } from "./timing.ts";

const name = process.argv.at(-1) ?? "";
const config = await resolveConfig(TRAIN_SECTIONS, { argv: process.argv.slice(2, -1) });
const device = await openDevice("cpu", { cpuMath: config.cpuMath, threads: threadsOfCase() }).catch((error: Error) => {
  const rank = process.env["RANK"];
  if (rank === undefined || rank === "0") process.stdout.write(`${name} cannot: ${error.message}\n`);
  process.exit();
});
using group = await openProcessGroup({ device });
const { config: sizes, batch, seq, steps } = modelOfCase(name);
const model = buildModel(device, sizes);
const precision = { paramDtype: config.precision === "bfloat16" ? bfloat16 : float32, reduceDtype: float32 };
const shard = (): { setGradientDivideFactor(factor: number): void } => {
  const { backwardPrefetch, forwardPrefetch } = config;
  const units = model.layers.map((block) => fullyShard(block, { mesh: group, precision, backwardPrefetch }));
  for (const [i, unit] of forwardPrefetch ? units.entries() : []) {
    unit.setModulesToForwardPrefetch(units.slice(i + 1, i + 2));
  }
  return fullyShard(model, { mesh: group, precision, backwardPrefetch });
};
const parallel = config.strategy === "ddp" ? replicate(model, { mesh: group }) : shard();
initializeParameters(model, 0);
const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7919 + group.rank * 104729) % sizes.vocab_size);
const times: number[] = [];
for (let step = 0; step < steps.warmUp + steps.timed; step++) {
  group.barrier("step");
  const started = performance.now();
  {
    using _step = scope();
    parallel.setGradientDivideFactor(batch * seq * group.size);
    optimizer.zeroGrad();
    const x = tensor(device, ids, { shape: [batch, seq], dtype: int32 });
    const { loss } = model.call({ inputIds: x, labels: x });
    loss?.backward();
    optimizer.step();
  }
  if (step >= steps.warmUp) times.push(performance.now() - started);
}
const median = times.toSorted((a, b) => a - b)[steps.timed >> 1] ?? NaN;
if (group.rank === 0) process.stdout.write(`${name} ${median.toFixed(2)}\n`);
