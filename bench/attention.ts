/**
 * Causal attention of the 7.9 M Llama's step on one core, forward and backward.
 *
 * @module
 */
import { rank } from "./process.ts";
import { program, type Subject } from "./subject.ts";

/** Milliseconds. */
export const ATTENTION: Subject = {
  name: "attention",
  unit: "ms",
  higherIsBetter: false,
  takesThreads: true,
  threadsTarget: 1.8,
  isApart: false,
  cases: ["native", "wasm-relaxed"].flatMap((math) =>
    ["forward", "backward"].map((name) => ({ name: `${math}-${name}`, ...math === "native" ? { target: 1.8 } : {} }))
  ),
  ours: program(({ runtime }, names) => rank(runtime, "bench/ranks/attention.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [python, "bench/peers/attention.py", ...names]),
  },
};
