/**
 * The host's work for a card, on a double of NVIDIA's libraries on which nothing runs: single calls, and a full step of Llama
 * 3.2 1B with FSDP on one rank, bfloat16 gathered from float32, 4096 tokens, which is expected to take a card 250 ms: call by call,
 * and by the launch of a graph.
 *
 * @module
 */
import { buildCudaTwin } from "../tests/native/cuda/build.ts";
import { rank, runProgram } from "./process.ts";
import type { BenchSetting, Subject } from "./subject.ts";

const SCRIPT = "bench/ranks/launches.ts";
/** The time that a card is expected to need for the step. */
const STEP_MS = 250;

async function runOnIdle({ runtime }: BenchSetting, name: string): Promise<string> {
  const [path, ...args] = rank(runtime, SCRIPT, name);
  const { idle } = await buildCudaTwin();
  return (await runProgram(path, args, idle)).output.trim();
}

/** Microseconds of the host. */
export const LAUNCHES: Subject = {
  name: "launches",
  unit: "us",
  higherIsBetter: false,
  isApart: true,
  cases: ["launch", "launch-strided", "product", "allocation", "copy", "llama-1b-step", "llama-1b-step-replayed"].map((
    name,
  ) => ({ name })),
  ours: async (setting, names) => {
    const outcomes = new Map<string, number>();
    for (const name of names) {
      const output = await runOnIdle(setting, name);
      outcomes.set(name, Number(output.slice(output.lastIndexOf(" "))));
    }
    return outcomes;
  },
  more: async (setting, name, us) => {
    if (!name.startsWith("llama-1b-step")) return { perSecond: 1e6 / us };
    const output = await runOnIdle(setting, name === "llama-1b-step" ? "counts" : "counts-replayed");
    return { ...JSON.parse(output.slice(output.indexOf("{"))), shareOfStep: us / 1000 / STEP_MS };
  },
};
