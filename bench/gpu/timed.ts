/**
 * Our side of the ratios: reads names of cases from its input, a line each, and answers with `<case> <milliseconds>`, or why it
 * cannot. What a case needs is made and warmed up when it is first asked for. The peer is bench/peers/gpu.py.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { openProcessGroup } from "fullyshard/comm";
import { openDevice } from "fullyshard/device";
import { LLAMA_SIZES, llamaStep } from "../ranks/llama_step.ts";
import { KERNEL_CASES } from "./kernels.ts";

const isSmall = process.argv[2] === "small";
const size = LLAMA_SIZES[isSmall ? "small" : "1b"];
const [calls, steps] = isSmall ? [1, 1] : [20, 5];
const device = await openDevice("cuda:0");
const group = await openProcessGroup({ device, backend: "nccl" });
const made = new Map<string, { readonly call: () => void; readonly times: number }>();

function make(name: string): { readonly call: () => void; readonly times: number } {
  if (name.startsWith("step")) {
    const { step } = llamaStep(device, group, size);
    return { call: () => step(), times: steps };
  }
  const kernel = KERNEL_CASES[name.replace(/:.*$/, "")];
  if (kernel === undefined) throw new Error(`no case '${name}'`);
  return { call: kernel(device, size).call, times: calls };
}

for await (const name of createInterface({ input: process.stdin })) {
  try {
    const key = name.startsWith("step") ? "step" : name;
    let one = made.get(key);
    if (one === undefined) {
      made.set(key, one = make(name));
      for (let i = 0; i < 3; i++) one.call();
    }
    device.synchronize();
    const started = performance.now();
    for (let i = 0; i < one.times; i++) one.call();
    device.synchronize();
    process.stdout.write(`${name} ${(performance.now() - started) / one.times}\n`);
  } catch (error) {
    process.stdout.write(`${name} cannot: ${error instanceof Error ? error.message.split("\n")[0] : error}\n`);
  }
}
group[Symbol.dispose]();
device.dispose();
