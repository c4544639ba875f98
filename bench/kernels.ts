/**
 * Kernels between the products, on one core, with the sizes of the 7.9 M Llama's step: their time, and what they calculate and move
 * in it beside what the machine could at most. Arrays that stay in a cache move faster than memory.
 *
 * @module
 */
import { fmaPeak, memoryPeak } from "./peak.ts";
import { rank, runProgram } from "./process.ts";
import { type Facts, linesOf, outcomeOf, program, type Subject } from "./subject.ts";

const NAMES = ["add", "gelu", "softmax", "rms-norm", "rms-norm-backward", "swiglu", "swiglu-backward", "cross-entropy"];

/** The text that a rank writes before the name of a kernel and its work. */
export const WORK = "work-";

/** Floating-point operations and bytes of a call, by kernel, as ranks told them. */
const works = new Map<string, readonly [flops: number, bytes: number]>();

/** The output of a rank for one kernel: its name, its floating-point operations and bytes. */
export function readWorks(output: string): readonly (readonly [kernel: string, work: readonly [number, number]])[] {
  return linesOf(output).flatMap(([word, text]) => {
    const [flops = NaN, bytes = NaN] = text.split(" ").map(Number);
    return word.startsWith(WORK) ? [[word.slice(WORK.length), [flops, bytes]] as const] : [];
  });
}

/** Rates of a kernel, beside peaks of the machine, and the greater of its shares in them. */
export function ratesOf(
  [flops, bytes]: readonly [flops: number, bytes: number],
  microseconds: number,
  peaks: { readonly flops: number; readonly bytes: number },
): Facts {
  const [gflops, gbytes] = [flops / microseconds / 1e3, bytes / microseconds / 1e3];
  return {
    "GFLOP/s": gflops,
    "peak GFLOP/s": peaks.flops,
    "GB/s": gbytes,
    "peak GB/s": peaks.bytes,
    ofPeak: Math.max(gflops / peaks.flops, gbytes / peaks.bytes),
  };
}

/** Microseconds. */
export const KERNELS: Subject = {
  name: "kernels",
  unit: "us",
  higherIsBetter: false,
  takesThreads: true,
  isApart: false,
  cases: ["native", "wasm-relaxed"].flatMap((math) => [...NAMES, "adamw"].map((name) => ({ name: `${math}-${name}` }))),
  ours: async (setting, names) => {
    const [path, ...args] = rank(setting.runtime, "bench/ranks/kernels.ts", ...names);
    const { output } = await runProgram(path, args, { OMP_NUM_THREADS: String(setting.threads) });
    for (const [kernel, work] of readWorks(output)) works.set(kernel, work);
    return new Map(names.map((name) => [name, outcomeOf(output, name)]));
  },
  peers: {
    torch: program(({ python }, names) => [python, "bench/peers/kernel_times.py", ...names]),
  },
  more: async ({ threads }, name, ours) => {
    const work = works.get(name.replace(/^(native|wasm-relaxed)-/, ""));
    if (work === undefined) return {};
    const [flops, bytes] = [await fmaPeak(threads), await memoryPeak(threads)];
    return ratesOf(work, ours, { flops: threads * flops, bytes: threads * bytes });
  },
};
