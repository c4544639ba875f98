/**
 * The least that trains: a Llama from scratch on made-up tokens, fully sharded, into a Hugging Face folder.
 *
 * @module
 */
import { AdamW, buildModel, DataLoader, fullyShard, initializeParameters } from "fullyshard";
import { openDevice, openProcessGroup, saveHfDirectory, tokensInMemory, trainStep } from "fullyshard";

const device = await openDevice("cpu");
using group = await openProcessGroup({ device }); // the ranks that the launcher started, or this one alone
const sizes = { vocab_size: 64, hidden_size: 64, intermediate_size: 176, num_hidden_layers: 4, num_attention_heads: 4 };
const model = buildModel(device, { model_type: "llama", ...sizes }); // no memory yet
for (const block of model.layers) fullyShard(block, { mesh: group });
fullyShard(model, { mesh: group });
initializeParameters(model, 0); // or: await loadHfWeights(model, "path/to/llama", group)
const optimizer = new AdamW(model.parameters(), { learningRate: 3e-3 });
const tokens = tokensInMemory(Int32Array.from({ length: 8193 }, (_, i) => (i * i) % 61), "squares");
const place = { rank: group.rank, worldSize: group.size, globalBatch: 12, microBatches: 1 };
const loader = new DataLoader({ tokens, sequenceLength: 32, seed: 0, ...place });
const context = { device, group, model, optimizer, maxGradNorm: 1 };
for (let step = 1; step <= 40; step++) trainStep(context, await loader.next(), step);
await saveHfDirectory(model, group, "runs/minimal"); // transformers loads it
