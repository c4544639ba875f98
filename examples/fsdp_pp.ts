/**
 * Pipeline parallelism over pairs of ranks, with fully sharded data parallelism inside of each stage:
 *
 *     npx fullyshard run --nproc-per-node 4 examples/fsdp_pp.ts
 *
 * Both ranks of a pair read the same rows. The first has the first half of the blocks, and sends what these give to the second, which has
 * the other half. Gradients come back the same way, while the first computes its next micro-batch.
 *
 * @module
 */
import { AdamW, clipGradNorm, fullyShard, launch, openModel, parallelizePipeline, textData } from "fullyshard";

await using run = await launch({ axes: { pipeline: 2, shard: -1 } });
const sizes = { hidden_size: 64, intermediate_size: 176, num_hidden_layers: 4, num_attention_heads: 4 };
const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
const { layers } = parallelizePipeline(model, run.mesh.get("pipeline")); // the blocks of this rank
const mesh = run.mesh.get("shard");
for (const block of layers) fullyShard(block, { mesh });
fullyShard(model, { mesh });
await model.load();
const text = new URL("src/", import.meta.resolve("fullyshard"));
const data = await textData(run, model, text, { sequenceLength: 64, batch: 4, microBatches: 4 });
const optimizer = new AdamW(model.parameters(), { learningRate: 5e-3 });
for await (const batch of data.take(20)) {
  optimizer.zeroGrad();
  const loss = run.backward(model, batch); // takes the micro-batches through both stages
  const gradNorm = clipGradNorm(model.parameters(), 1);
  optimizer.step();
  run.log({ loss, gradNorm });
}
await model.save("runs/fsdp_pp");
