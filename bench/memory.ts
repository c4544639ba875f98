/**
 * The most memory that rank 0 has in use at once in a step of the 7.9 M Llama, two samples of 256 tokens a rank, under each policy and
 * number of ranks. A run in which a rank's bytes are not those that a dry run predicts, term by term, has no figure.
 *
 * @module
 */
import type { MemoryPeak } from "fullyshard/device";
import { launch, runProgram } from "./process.ts";
import type { BenchSetting, Subject } from "./subject.ts";

const POLICIES = ["fsdp", "fsdp-keep", "fsdp-bf16", "fsdp-offload", "ddp"] as const;
const MIB = 2 ** 20;

async function peakOf({ runtime }: BenchSetting, name: string): Promise<MemoryPeak> {
  const ranks = Number(name.replace(/^.*-w/, ""));
  const [path, ...args] = launch(runtime, ranks, "bench/ranks/memory.ts", name);
  const { output } = await runProgram(path, args);
  return JSON.parse(output.slice(output.indexOf("{")));
}

/** The last result of each case. */
const peaks = new Map<string, MemoryPeak>();

/** MiB, on the device. */
export const MEMORY: Subject = {
  name: "memory",
  unit: "MiB",
  higherIsBetter: false,
  isApart: true,
  cases: POLICIES.flatMap((policy) => [1, 2, 4, 8].map((ranks) => ({ name: `${policy}-w${ranks}` }))),
  ours: async (setting, names) => {
    for (const name of names) peaks.set(name, await peakOf(setting, name));
    return new Map(names.map((name) => [name, (peaks.get(name)?.peakBytes ?? NaN) / MIB]));
  },
  more: (_setting, name) => {
    const { terms, offloaded } = peaks.get(name) ?? {};
    const told = Object.entries(terms ?? {}).map(([term, bytes]): [string, number] => [term, bytes / MIB]);
    return Promise.resolve(Object.fromEntries([...told, ["offloaded", (offloaded?.peakBytes ?? NaN) / MIB]]));
  },
};
