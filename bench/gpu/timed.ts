/**
 * Our side of the ratios: reads names of cases from its input, a line each, and answers with `<case> <JSON>`, the milliseconds
 * of a call and what else was seen, or why it cannot. What a case needs is made and warmed up when it is first asked for. The
 * peer is bench/peers/gpu.py.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { openProcessGroup } from "fullyshard/comm";
import { openDevice } from "fullyshard/device";
import { capturedStep, LLAMA_SIZES, llamaStep } from "../ranks/llama_step.ts";
import { hostMillisecondsOf } from "./host_time.ts";
import { caseNamed } from "./kernels.ts";
import type { Seen } from "./answering.ts";

/** A case that is ready. */
interface Ready {
  readonly call: () => void;
  readonly times: number;
  /** Figures besides the time. */
  readonly seen: () => Seen;
}

const isSmall = process.argv[2] === "small";
const size = LLAMA_SIZES[isSmall ? "small" : "1b"];
const [calls, steps] = isSmall ? [1, 1] : [20, 5];
/** Calls before what is timed; the fourth step by a graph captures it. */
const WARMUP = 5;
const device = await openDevice("cuda:0");
const group = await openProcessGroup({ device, backend: "nccl" });
const made = new Map<string, Ready>();

function make(name: string): Ready {
  if (name === "step" || name === "graph") return makeStep(name);
  const { call } = caseNamed(name.replace(/:(?:flash|cudnn)$/, ""))(device, size);
  for (let i = 0; i < WARMUP; i++) call();
  return { call, times: calls, seen: () => ({ by: device.detail }) };
}

function makeStep(by: "step" | "graph"): Ready {
  const { step, parameters } = (by === "graph" ? capturedStep : llamaStep)(device, group, size);
  const call = (): void => step();
  for (let i = 0; i < WARMUP; i++) call();
  const hostMs = hostMillisecondsOf(device, call);
  device.allocator.resetPeak();
  const seen = (): Seen => ({ by: device.detail, parameters, hostMs, peakBytes: device.allocator.stats.peak });
  return { call, times: steps, seen };
}

for await (const name of createInterface({ input: process.stdin })) {
  try {
    const one = made.get(name) ?? make(name);
    made.set(name, one);
    device.synchronize();
    const started = performance.now();
    for (let i = 0; i < one.times; i++) one.call();
    device.synchronize();
    const ms = (performance.now() - started) / one.times;
    process.stdout.write(`${name} ${JSON.stringify({ ms, ...one.seen() })}\n`);
  } catch (error) {
    process.stdout.write(`${name} cannot: ${error instanceof Error ? error.message.split("\n")[0] : error}\n`);
  }
}
group[Symbol.dispose]();
device.dispose();
