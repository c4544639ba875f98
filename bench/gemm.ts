/**
 * Square float32 matrix products on one core.
 *
 * @module
 */
import { numberAfter, runProgram, runtimePath } from "./process.ts";
import type { BenchCase, Subject } from "./subject.ts";

/** GFLOP/s. */
export const GEMM: Subject = {
  name: "gemm",
  cases: ({ runtime, python }) =>
    Promise.resolve(
      ["native", "wasm", "wasm-relaxed", "onednn"].flatMap((math) =>
        [128, 512].map((size): BenchCase => ({
          name: `${math}-${size}`,
          unit: "GFLOP/s",
          higherIsBetter: true,
          ours: async () => {
            const permissions = runtime === "deno" ? ["--allow-all"] : [];
            const args = ["run", ...permissions, "bench/ranks/gemm.ts", math, String(size)];
            const { last } = await runProgram(runtimePath(runtime), args, { OMP_NUM_THREADS: "1" });
            return numberAfter(last, "gflops");
          },
          peer: async () => {
            const { last } = await runProgram(python, ["bench/peers/gemm.py", String(size)], { OMP_NUM_THREADS: "1" });
            return numberAfter(last, "gflops");
          },
        }))
      ),
    ),
};
