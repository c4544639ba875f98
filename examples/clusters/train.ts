/**
 * A training for a CPU cluster: every rank that the launcher started runs this script, and together they train one model.
 * The model is saved as `transformers` loads it.
 *
 * mpirun --hostfile examples/clusters/hosts --map-by ppr:2:node -n 4 bun examples/clusters/train.ts runs/cluster
 *
 * @module
 */
import process from "node:process";
import { AdamW, clipGradNorm, cosine, fullyShard, launch, openModel, textData } from "fullyshard";

const [folder = "runs/cluster", steps = "60"] = process.argv.slice(2);
await using run = await launch({ threads: 1 });
const sizes = { hidden_size: 64, intermediate_size: 176, num_hidden_layers: 4, num_attention_heads: 4 };
const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
// Shards within a host and copies across hosts would be `run.hybridMesh`; here all ranks share each parameter.
for (const block of model.layers) fullyShard(block, { mesh: run.mesh });
fullyShard(model, { mesh: run.mesh });
await model.load();
const text = new URL("src/", import.meta.resolve("fullyshard")); // any files that all hosts see
const data = await textData(run, model, text, { sequenceLength: 64, batch: 24 });
const schedule = cosine({ warmupSteps: 5, steps: Number(steps) });
const optimizer = new AdamW(model.parameters(), { learningRate: 5e-3, schedule });
for await (const batch of data.take(Number(steps))) {
  optimizer.zeroGrad();
  const loss = run.backward(model, batch);
  const gradNorm = clipGradNorm(model.parameters(), 1);
  optimizer.step();
  run.log({ loss, gradNorm });
}
await model.save(folder); // every rank writes its part: a folder that all hosts see
