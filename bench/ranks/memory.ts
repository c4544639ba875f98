/**
 * A rank that takes two steps of the 7.9 M Llama under a policy: `memory.ts <case>`. Each compares the most memory it had in use at
 * once, term by term, with what a dry run of the same steps predicts; rank 0 prints it as JSON.
 *
 * @module
 */
import process from "node:process";
import { dryRun } from "fullyshard";
import { openProcessGroup } from "fullyshard/comm";
import { openDevice } from "fullyshard/device";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { LLAMA_8M } from "./models.ts";
import { training } from "./training.ts";

const name = process.argv[2] ?? "";
const steps = training({ ...LLAMA_8M, batch: 2 }, name.replace(/-w\d+$/, ""), 1e-3);
const device = await openDevice("cpu", { ranksOnHost: Number(process.env["WORLD_SIZE"] ?? 1) });
using group = await openProcessGroup({ device });
const { rank, size: worldSize } = group;
const predicted = await dryRun(steps, { rank, worldSize, device });
const step = steps({ device, mesh: group });
step();
device.allocator.resetPeak();
device.offload.resetPeak();
step();
const seen = memoryPeak({ device, group });
const { peakBytes, terms, offloaded } = predicted;
if (JSON.stringify(seen) !== JSON.stringify({ peakBytes, terms, offloaded })) {
  throw new Error(
    `rank ${rank}: predicted ${JSON.stringify({ peakBytes, terms, offloaded })}, seen ${JSON.stringify(seen)}`,
  );
}
if (rank === 0) process.stdout.write(`${JSON.stringify(seen)}\n`);
