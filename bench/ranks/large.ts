/**
 * A rank that takes three steps of a model that fills its memory: `large.ts <model>-w<ranks>`. Its memory has as many bytes as a dry run
 * says that it must, or the model's limit. Each rank compares what it used with what was predicted; rank 0 prints both as JSON.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { dryRun, float32 } from "fullyshard";
import { openProcessGroup } from "fullyshard/comm";
import { openDevice } from "fullyshard/device";
import { memoryPeak } from "../../src/train/dry_run.ts";
import type { LargeRun } from "../large.ts";
import { type BenchModel, LLAMA_1100M, LLAMA_600M, LLAMA_8M } from "./models.ts";
import { training } from "./training.ts";

const STEPS = 3;
/** Working memory of kernels, below the allocator's addresses. */
const WORKING_BYTES = 2 ** 24;

/** Models, their learning rates, and the memory of a rank where it is not what is predicted. */
const MODELS: Readonly<Record<string, readonly [model: BenchModel, learningRate: number, limit?: number]>> = {
  "llama-8m": [LLAMA_8M, 1e-3],
  "llama-0.6b": [LLAMA_600M, 1e-4],
  "llama-1.1b": [LLAMA_1100M, 1e-4, 20 * 2 ** 30],
};

const name = process.argv[2] ?? "";
const found = MODELS[name.replace(/-w\d+$/, "")];
if (found === undefined) throw new Error(`no case '${name}'`);
const [model, learningRate, given] = found;
const steps = training(model, "fsdp", learningRate);
const [rank, worldSize] = [Number(process.env["RANK"] ?? 0), Number(process.env["WORLD_SIZE"] ?? 1)];

const predicted = await dryRun(steps, { rank, worldSize, cpuMath: "native" });
const limit = given ?? predicted.highest + WORKING_BYTES;
if (predicted.highest + WORKING_BYTES > limit) {
  throw new Error(`rank ${rank} must have ${predicted.highest + WORKING_BYTES} bytes, of which there are ${limit}`);
}
const device = await openDevice("cpu", { cpuMath: "native", memoryBytes: limit, ranksOnHost: worldSize });
using group = await openProcessGroup({ device });
const { begin } = device.allocator;
const step = steps({ device, mesh: group });
const [losses, secondsPerStep]: [number[], number[]] = [[], []];
for (let i = 0; i < STEPS; i++) {
  // The first step makes the states of the optimizer, so the second is the first to be like the one predicted.
  if (i === 1) device.allocator.resetPeak();
  const started = performance.now();
  losses.push(step());
  secondsPerStep.push((performance.now() - started) / 1000);
}
const { peakBytes: seenPeak } = memoryPeak({ device, group });
const seenMemory = device.allocator.stats.highest - begin;
const [resident] = /(?<=VmHWM:\s*)\d+/.exec(readFileSync("/proc/self/status", "utf8")) ?? [];
const run: LargeRun = {
  predictedPeak: predicted.peakBytes,
  seenPeak,
  predictedMemory: predicted.highest,
  seenMemory,
  limit,
  resident: Number(resident) * 1024,
  parameters: predicted.terms.parameters * worldSize / float32.byteLength,
  secondsPerStep,
  losses,
};
const [first = NaN, last = NaN] = [losses[0], losses.at(-1)];
if (seenPeak !== predicted.peakBytes || seenMemory > predicted.highest || !(last < first)) {
  throw new Error(`rank ${rank} did not do what was predicted: ${JSON.stringify(run)}`);
}
if (rank === 0) process.stdout.write(`${name} ${JSON.stringify(run)}\n`);
