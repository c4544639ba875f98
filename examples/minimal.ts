/**
 * The least that trains: a small Llama from scratch on the text of the package's own files, fully sharded.
 *
 * @module
 */
import { AdamW, clipGradNorm, cosine, fullyShard, launch, openModel, textData } from "fullyshard";

await using run = await launch(); // the ranks that the launcher started, or this one alone
const sizes = { hidden_size: 64, intermediate_size: 176, num_hidden_layers: 4, num_attention_heads: 4 };
// Pass a Hugging Face folder instead of this config to fine-tune it. No parameter is allocated yet.
const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
for (const block of model.layers) fullyShard(block, { mesh: run.mesh }); // each block is one FSDP unit
fullyShard(model, { mesh: run.mesh });
await model.load(); // each rank reads, or draws, its own part
const text = new URL("src/", import.meta.resolve("fullyshard")); // any files, folders or patterns
const data = await textData(run, model, text, { sequenceLength: 64, batch: 12 }); // bytes are tokens
const schedule = cosine({ warmupSteps: 5, steps: 60 });
const optimizer = new AdamW(model.parameters(), { learningRate: 5e-3, schedule });
for await (const batch of data.take(60)) {
  optimizer.zeroGrad();
  const loss = run.backward(model, batch); // the mean over the tokens of all ranks
  const gradNorm = clipGradNorm(model.parameters(), 1);
  optimizer.step();
  run.log({ loss, gradNorm });
}
await model.save("runs/minimal"); // transformers loads it
