/**
 * Ranks that open the model in `<directory>/<rank>/model`, of which rank 0's alone has weights, then the whole one again with each
 * rank reading for itself; rank by rank, a line of what was read and whether the weights are the same bits.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { launch, openModel } from "../../../mod.ts";
import { getModelStateDict } from "../../../doors/checkpoint.ts";

const directory = process.argv[2] ?? "";
/** Bytes that this process has read from files. */
const bytesRead = (): number => Number(/rchar: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))?.[1]);

const openSent = () => openModel(run, "model", { fsdpPlan: "auto", broadcastFromRank0: true });

await using run = await launch({ cpuMath: "wasm" });
process.chdir(`${directory}/${run.group.rank}`);
await openModel(run, "model"); // code that is loaded late is files too
let [sent, read] = [await openSent(), Infinity];
// The runtime's own threads may read files meanwhile: the least of several times is the model's.
for (let time = 0; time < 3; time++) {
  const before = bytesRead();
  sent = await openSent();
  read = Math.min(read, bytesRead() - before);
}
const own = await openModel(run, `${directory}/0/model`, { fsdpPlan: "auto" });
const [first, second] = [sent, own].map((model) => getModelStateDict(model));
let [equal, compared] = [0, 0];
for (const [name, tensor] of first ?? []) {
  const expected = second?.get(name)?.toArray() ?? [];
  tensor.toArray().forEach((value, i) => {
    compared++;
    if (Object.is(value, expected[i])) equal++;
  });
}
process.stdout.write(`${JSON.stringify({ rank: run.group.rank, read, compared, equal })}\n`);
