import { AdamW, buildModel, clipGradNorm, fullyShard, initializeParameters, int32, keyOf } from "fullyshard";
import { openDevice, openProcessGroup, saveHfDirectory, scope, tensor, uniformInt } from "fullyshard";

const device = await openDevice("cpu");
const group = await openProcessGroup({ device }); // the ranks that the launcher started, or this one alone
const model = buildModel(device, {
  model_type: "llama",
  vocab_size: 256,
  hidden_size: 64,
  intermediate_size: 176,
  num_hidden_layers: 4,
  num_attention_heads: 4,
}); // no memory yet
for (const block of model.shardingUnits()) fullyShard(block, { group });
const sharded = fullyShard(model, { group });
initializeParameters(model, 0); // or: await loadHfWeights(model, "path/to/llama", group)
const optimizer = new AdamW(model.parameters(), { learningRate: 3e-3 });
for (let step = 0; step < 20; step++) {
  using _step = scope(); // every tensor made below dies here
  const bytes = Array.from({ length: 4 * 33 }, (_, i) => uniformInt(keyOf(step, `rank ${group.rank}`), i, 4));
  const rows = (from: number) => bytes.filter((_, i) => i % 33 >= from && i % 33 < from + 32);
  const batch = (from: number) => tensor(device, rows(from), { shape: [4, 32], dtype: int32 });
  sharded.setGradientDivideFactor(4 * 32 * group.size); // the loss is a sum over tokens
  optimizer.zeroGrad();
  const { loss } = model.call({ inputIds: batch(0), labels: batch(1) });
  loss?.backward();
  clipGradNorm(model.parameters(), 1);
  optimizer.step();
}
await saveHfDirectory(model, group, "runs/minimal");
group.dispose();
