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
import { LLAMA_SIZES, type LlamaSize, llamaStep } from "../ranks/llama_step.ts";
import { compareCudnn } from "./cudnn.ts";
import { KERNEL_CASES, millisecondsOf } from "./kernels.ts";
import { computeOperations, differenceOf } from "./operations.ts";
import { type Row, tell } from "./row.ts";

/** bfloat16 FLOP/s of an H100, by which MFU is told. */
const PEAK_FLOPS = 989.5e12;
/** Kernels that the profile tells of: one of tensor cores, one of rows, one of elements. */
const PROFILED = ["attention", "rms-norm", "adamw"];

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

/** FLOPs of a token: six for each weight but the embedding's, which is the head's too, and all of attention's products. */
function flopsOfToken(parameters: number, { layers, seq, hidden }: LlamaSize): number {
  return 6 * parameters + 12 * layers * hidden * seq;
}

async function train(size: LlamaSize, warmup: number, steps: number): Promise<void> {
  const device = await openDevice("cuda:0");
  // One rank goes through NCCL all the same; several share the card as they can.
  const isAlone = process.env["WORLD_SIZE"] === undefined;
  using group = await openProcessGroup({ device, backend: isAlone ? "nccl" : "auto" });
  const { step, parameters } = llamaStep(device, group, size);
  let loss = NaN;
  for (let i = 0; i < warmup; i++) step((seen) => void (loss = seen.item()));
  const first = loss;
  device.synchronize();
  device.allocator.resetPeak();
  let hostMs = 0;
  const started = performance.now();
  for (let i = 0; i < steps; i++) {
    const began = performance.now();
    step(i === steps - 1 ? (seen) => void (loss = seen.item()) : undefined);
    if (i < steps - 1) hostMs += performance.now() - began;
  }
  device.synchronize();
  const msPerStep = (performance.now() - started) / steps;
  const tokensPerSecond = size.batch * size.seq / msPerStep * 1000;
  const isRight = Number.isFinite(loss) && loss < first;
  const who = `rank ${group.rank} of ${group.size}, ${group.kind}`;
  const row: Row = {
    case: `llama of ${parameters} parameters, ${size.batch} x ${size.seq} tokens, ${who}`,
    outcome: isRight ? "passed" : "failed",
    ...isRight ? {} : { reason: `the loss went from ${first} to ${loss}` },
    figures: {
      ...{ msPerStep, tokensPerSecond, mfuOfH100: tokensPerSecond * flopsOfToken(parameters, size) / PEAK_FLOPS },
      ...{ hostMsPerStep: hostMs / Math.max(1, steps - 1), peakBytes: device.allocator.stats.peak, loss },
    },
  };
  tell(row);
}

async function profile(size: LlamaSize): Promise<void> {
  const device = await openDevice("cuda:0");
  for (const name of PROFILED) {
    const { call, flops, bytes } = KERNEL_CASES[name]?.(device, size) ?? { call: () => {}, flops: NaN, bytes: NaN };
    const ms = millisecondsOf(device, call, size === LLAMA_SIZES["1b"] ? 10 : 1);
    tell({
      case: name,
      outcome: "passed",
      figures: { us: ms * 1000, bytes, flops, gigabytesPerSecond: bytes / ms / 1e6, teraflops: flops / ms / 1e9 },
    });
  }
  device.dispose();
}

const [item, name] = process.argv.slice(2);
const size = LLAMA_SIZES[name === "small" ? "small" : "1b"];
const isSmall = name === "small";
if (item === "self-check") await selfCheck();
else if (item === "operations") await operations();
else if (item === "train") await train(size, isSmall ? 2 : 10, isSmall ? 2 : 20);
else if (item === "cudnn") await compareCudnn(size, isSmall ? 1 : 10);
else if (item === "profile") await profile(size);
else throw new Error(`no item '${item}'`);
