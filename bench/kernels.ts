/**
 * Kernels between the products, on one core, with the sizes of the 7.9 M Llama's step.
 *
 * @module
 */
import { rank } from "./process.ts";
import { program, type Subject } from "./subject.ts";

const NAMES = ["add", "gelu", "softmax", "rms-norm", "rms-norm-backward", "swiglu", "swiglu-backward", "cross-entropy"];

/** Microseconds. */
export const KERNELS: Subject = {
  name: "kernels",
  unit: "us",
  higherIsBetter: false,
  isApart: false,
  cases: ["native", "wasm-relaxed"].flatMap((math) => [...NAMES, "adamw"].map((name) => ({ name: `${math}-${name}` }))),
  ours: program(({ runtime }, names) => rank(runtime, "bench/ranks/kernels.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [python, "bench/peers/kernel_times.py", ...names]),
  },
};
