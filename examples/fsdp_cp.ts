/**
 * Context parallelism inside pairs of ranks, and fully sharded data parallelism over all ranks:
 *
 *     npx fullyshard run --nproc-per-node 4 examples/fsdp_cp.ts
 *
 * Both ranks of a pair read the same rows. Each computes one half of their positions, and attention gathers the keys and values of both.
 *
 * @module
 */
import { AdamW, clipGradNorm, fullyShard, launch, openModel, parallelizeContext, textData } from "fullyshard";

await using run = await launch({ axes: { shard: -1, context: 2 } });
const sizes = { hidden_size: 64, intermediate_size: 176, num_hidden_layers: 2, num_attention_heads: 4 };
const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
parallelizeContext(model, run.mesh.get("context"));
const mesh = run.mesh.flatten(["shard", "context"], "shard_context"); // gradients are sums over both axes
for (const block of model.layers) fullyShard(block, { mesh });
fullyShard(model, { mesh });
await model.load();
const text = new URL("src/", import.meta.resolve("fullyshard"));
const data = await textData(run, model, text, { sequenceLength: 64, batch: 2 });
const optimizer = new AdamW(model.parameters(), { learningRate: 5e-3 });
for await (const batch of data.take(20)) {
  optimizer.zeroGrad();
  const loss = run.backward(model, batch); // takes full rows, and gives each rank its positions
  const gradNorm = clipGradNorm(model.parameters(), 1);
  optimizer.step();
  run.log({ loss, gradNorm });
}
await model.save("runs/fsdp_cp");
