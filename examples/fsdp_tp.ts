/**
 * Tensor parallelism inside pairs of ranks, and fully sharded data parallelism over the pairs:
 *
 *     npx fullyshard run --nproc-per-node 4 examples/fsdp_tp.ts
 *
 * Both ranks of a pair read the same rows and compute with halves of the weights. Files and first values are those of one rank.
 *
 * @module
 */
import { AdamW, clipGradNorm, fullyShard, launch, openModel, parallelizeModule, textData } from "fullyshard";

await using run = await launch({ axes: { shard: -1, tensor: 2 } });
const sizes = { hidden_size: 64, intermediate_size: 176, num_hidden_layers: 2, num_attention_heads: 4 };
const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
parallelizeModule(model, run.mesh.get("tensor"), {
  "model.layers.*.self_attn.q_proj": "colwise",
  "model.layers.*.self_attn.k_proj": "colwise",
  "model.layers.*.self_attn.v_proj": "colwise",
  "model.layers.*.self_attn.o_proj": "rowwise",
  "model.layers.*.mlp.gate_proj": "colwise",
  "model.layers.*.mlp.up_proj": "colwise",
  "model.layers.*.mlp.down_proj": "rowwise",
});
for (const block of model.layers) fullyShard(block, { mesh: run.mesh.get("shard") });
fullyShard(model, { mesh: run.mesh.get("shard") });
await model.load(); // each rank draws its shard of its part
const text = new URL("src/", import.meta.resolve("fullyshard"));
const data = await textData(run, model, text, { sequenceLength: 32, batch: 4 });
const optimizer = new AdamW(model.parameters(), { learningRate: 5e-3 });
for await (const batch of data.take(20)) {
  optimizer.zeroGrad();
  const loss = run.backward(model, batch); // the mean over the tokens of the ranks that read other rows
  const gradNorm = clipGradNorm(model.parameters(), 1); // of the whole model
  optimizer.step();
  run.log({ loss, gradNorm });
}
await model.save("runs/fsdp_tp"); // whole tensors, which transformers loads
