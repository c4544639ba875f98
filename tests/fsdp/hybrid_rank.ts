/** A process that shards within what counts as its host, and says who shares and what a gradient is. @module */
import process from "node:process";
import { fullyShard, launch, tensor } from "../../mod.ts";
import { initializeParameters, Linear } from "../../doors/nn.ts";

await using run = await launch({ backend: "shm", cpuMath: "wasm", stagingBytes: 2 ** 20, joinTimeoutSeconds: 30 });
const { device, hybridMesh, group } = run;
const layer = new Linear(device, 1, 1, { bias: false });
fullyShard(layer, { mesh: hybridMesh });
initializeParameters(layer, 0);
// Ranks give 0.5 on the mean: 2 of rank 0, and nothing of the others.
const x = tensor(device, [group.rank === 0 ? 2 : 0], { shape: [1, 1] });
layer.call(x).sum().backward();
const ranksOf = (axis: string): string => hybridMesh.axis(axis).worldRanks.join(",");
const [grad = "none"] = hybridMesh.axis("shard").exchangeText(String(layer.weight.grad?.toArray()[0] ?? ""), "gradient")
  .filter((text) => text !== "");
process.stdout.write(`${ranksOf("shard")} ${ranksOf("replicate")} ${grad}\n`);
