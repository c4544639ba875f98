/**
 * Float32 matrix products on one core: squares, and those of a step of the 7.9 M Llama.
 *
 * @module
 */
import { rank } from "./process.ts";
import { program, type Subject } from "./subject.ts";

const SHAPES = ["128x128x128", "512x512x512", "1024x256x256", "1024x688x256", "1024x256x688", "1024x4096x256"];

/** GFLOP/s of `m x n x k`, by who computes. */
export const GEMM: Subject = {
  name: "gemm",
  unit: "GFLOP/s",
  higherIsBetter: true,
  threadsTarget: 1.8,
  isApart: false,
  cases: ["native", "wasm-relaxed", "onednn"].flatMap((math) =>
    SHAPES.map((shape) => ({ name: `${math}-${shape}`, ...math === "native" ? { target: 1 } : {} }))
  ),
  ours: program(({ runtime }, names) => rank(runtime, "bench/ranks/gemm.ts", ...names)),
  torch: program(({ python }, names) => [python, "bench/peers/gemm.py", ...names]),
};
