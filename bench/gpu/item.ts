/**
 * One item of a run on a card, in a process of its own: `item.ts <item> <size>` prints what it saw, a line of JSON each.
 *
 * @module
 */
import process from "node:process";
import { float32, tensor } from "fullyshard";
import { openProcessGroup } from "fullyshard/comm";
import { openDevice } from "fullyshard/device";
import { processEnvironment } from "../../src/runtime/env.ts";
import { buildCudaTwin, lackingForTwin } from "../../tests/native/cuda/build.ts";
import { capturedStep, LLAMA_SIZES, llamaStep } from "../ranks/llama_step.ts";
import { compareCudnn } from "./cudnn.ts";
import { hostMillisecondsOf } from "./host_time.ts";
import { caseNamed, millisecondsOf } from "./kernels.ts";
import { H100_BYTES_PER_SECOND, modelFigures, modelWords } from "./mfu.ts";
import { computeOperations, differenceOf } from "./operations.ts";
import { tell } from "./row.ts";

/** Kernels that the profile tells of: one of tensor cores, one of rows, one of elements. */
const PROFILED = ["attention", "rms-norm", "adamw"];
/** Kernels that memory bounds, and the share of its speed that they are to reach. */
const [BOUND_BY_MEMORY, SHARE_OF_MEMORY] = [["rms-norm", "rms-norm-backward", "cross-entropy", "adamw"], 0.9];
/** The share of a step's time that the host is to take at most. */
const SHARE_OF_HOST = 0.05;
/** Bytes of a copy that no cache of a card holds. */
const COPIED_BYTES = 2 ** 28;

async function selfCheck(): Promise<void> {
  const device = await openDevice("cuda:0");
  const { capacity } = device.allocator.stats;
  using x = tensor(device, [1, 2, 3], { dtype: float32 });
  using y = x.mul(2).add(1);
  const found = [...y.toArray()].flat().join();
  const isRight = found === "3,5,7";
  const figures = { device: device.detail, freeBytes: capacity };
  tell({ case: "three numbers", ...isRight ? { outcome: "passed" } : { outcome: "failed", reason: found }, figures });
  device.dispose();
}

async function operations(): Promise<void> {
  const lacking = lackingForTwin();
  if (lacking !== undefined) {
    return tell({ case: "operations", outcome: "cannot", reason: `the host form needs ${lacking}` });
  }
  const [card, host] = [
    await computeOperations(processEnvironment()),
    await computeOperations((await buildCudaTwin()).environment),
  ];
  for (const [name, words] of card) {
    const reason = differenceOf(name, words, host.get(name) ?? new Uint32Array());
    tell(reason === undefined ? { case: name, outcome: "passed" } : { case: name, outcome: "failed", reason });
  }
}

async function train(by: "calls" | "graph", name: "1b" | "small"): Promise<void> {
  const [warmup, steps] = name === "small" ? [5, 2] : [10, 20];
  const device = await openDevice("cuda:0");
  // One rank goes through NCCL all the same; several share the card as they can.
  const isAlone = process.env["WORLD_SIZE"] === undefined;
  using group = await openProcessGroup({ device, backend: isAlone ? "nccl" : "auto" });
  const { step, parameters } = (by === "graph" ? capturedStep : llamaStep)(device, group, LLAMA_SIZES[name]);
  const read = { loss: NaN };
  const take = (isRead: boolean): void => step(isRead ? (loss) => void (read.loss = loss.item()) : undefined);
  take(true);
  const first = read.loss;
  for (let i = 1; i < warmup; i++) take(false);
  device.synchronize();
  device.allocator.resetPeak();
  const started = performance.now();
  for (let i = 0; i < steps; i++) take(false);
  device.synchronize();
  const msPerStep = (performance.now() - started) / steps;
  const hostMs = hostMillisecondsOf(device, step);
  take(true);
  const { loss } = read;
  const isRight = Number.isFinite(loss) && loss < first;
  const who = `rank ${group.rank} of ${group.size}, ${group.kind}, by ${by === "graph" ? "a graph" : "calls"}`;
  const words = modelWords(name);
  tell({
    case: `llama of ${parameters} parameters, ${words.microBatch}, ${who}`,
    outcome: isRight ? "passed" : "failed",
    ...isRight ? {} : { reason: `the loss went from ${first} to ${loss}` },
    figures: {
      ...{ msPerStep, ...modelFigures(name, parameters, msPerStep), ...words },
      ...{ hostMs, hostShare: hostMs / msPerStep, hostShareGoal: SHARE_OF_HOST },
      ...{ peakBytes: device.allocator.stats.peak, loss, by: device.detail },
    },
  });
}

/** The kernels that memory bounds, beside a copy on the card and what a data sheet says of an H100. */
async function memorySpeed(name: "1b" | "small"): Promise<void> {
  const device = await openDevice("cuda:0");
  const [rounds, copied] = name === "small" ? [1, 2 ** 16] : [10, COPIED_BYTES];
  const [dst, src] = [device.allocator.allocate(copied, "bench"), device.allocator.allocate(copied, "bench")];
  const copy = 2 * copied / millisecondsOf(device, () => device.copy(dst, src, copied), rounds) * 1000;
  const figures = (speed: number) => ({ gigabytesPerSecond: speed / 1e9, shareOfH100: speed / H100_BYTES_PER_SECOND });
  tell({ case: "copy", outcome: "passed", figures: { ...figures(copy), bytes: 2 * copied, by: device.detail } });
  // Rows of eight samples, as those of one would stay in a card's cache.
  const size = { ...LLAMA_SIZES[name], batch: 8 };
  for (const kernel of BOUND_BY_MEMORY) {
    const { call, bytes } = caseNamed(kernel)(device, size);
    const speed = bytes / millisecondsOf(device, call, rounds) * 1000;
    const shares = { ...figures(speed), shareOfCopy: speed / copy, goal: SHARE_OF_MEMORY };
    tell({ case: kernel, outcome: "passed", figures: { ...shares, bytes } });
  }
  device.dispose();
}

async function profile(name: "1b" | "small"): Promise<void> {
  const device = await openDevice("cuda:0");
  for (const kernel of PROFILED) {
    const { call, flops, bytes } = caseNamed(kernel)(device, LLAMA_SIZES[name]);
    const ms = millisecondsOf(device, call, name === "small" ? 1 : 10);
    tell({
      case: kernel,
      outcome: "passed",
      figures: { us: ms * 1000, bytes, flops, gigabytesPerSecond: bytes / ms / 1e6, teraflops: flops / ms / 1e9 },
    });
  }
  device.dispose();
}

const [item, text] = process.argv.slice(2);
const size = text === "small" ? "small" : "1b";
if (item === "self-check") await selfCheck();
else if (item === "operations") await operations();
else if (item === "train") await train("calls", size);
else if (item === "train-graph") await train("graph", size);
else if (item === "memory") await memorySpeed(size);
else if (item === "cudnn") await compareCudnn(LLAMA_SIZES[size], size === "small" ? 1 : 10);
else if (item === "profile") await profile(size);
else throw new Error(`no item '${item}'`);
