/**
 * Float32 matrix products on one core: squares, and those of a step of the 7.9 M Llama.
 *
 * @module
 */
import { jaxJsSide } from "./jax_js.ts";
import { fmaPeak } from "./peak.ts";
import { rank } from "./process.ts";
import { type BenchCase, program, type Subject } from "./subject.ts";

const SHAPES = ["128x128x128", "512x512x512", "1024x256x256", "1024x688x256", "1024x256x688", "1024x4096x256"];

/** jax-js is WASM too; the others are beyond any 128 bits. */
const WITH_JAX_JS: Omit<BenchCase, "name"> = { peers: ["torch", "jax-js"], targets: { "jax-js": 1.25 } };

/** GFLOP/s of `m x n x k`, by who computes. */
export const GEMM: Subject = {
  name: "gemm",
  unit: "GFLOP/s",
  higherIsBetter: true,
  takesThreads: true,
  threadsTarget: 1.8,
  isApart: false,
  cases: ["native", "wasm-relaxed"].flatMap((math) =>
    SHAPES.map((shape): BenchCase => ({
      name: `${math}-${shape}`,
      ...math === "native" ? { target: 1 } : {},
      ...math === "wasm-relaxed" && shape === "512x512x512" ? WITH_JAX_JS : {},
    }))
  ),
  ours: program(({ runtime }, names) => rank(runtime, "bench/ranks/gemm.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [python, "bench/peers/gemm.py", ...names]),
    "jax-js": jaxJsSide("jax_js_gemm.mjs"),
  },
  // Math other than `native` computes 128 bits at a time, so the peak does not apply to it.
  more: async ({ threads }, name, ours) => {
    if (!name.startsWith("native-")) return {};
    const peak = threads * await fmaPeak(threads);
    return { fmaPeak: peak, ofPeak: ours / peak };
  },
};
