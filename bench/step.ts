/**
 * One optimizer step of the 7.9 M Llama on two ranks: sequence 256, four samples a rank, float32, AdamW.
 *
 * @module
 */
import { numberAfter, ROOT, runProgram, runtimePath } from "./process.ts";
import type { BenchCase, Subject } from "./subject.ts";

const CASES = [
  { name: "llama-8m-f32", args: ["--cpu-math", "onednn"], peer: "fsdp2" },
  { name: "llama-8m-f32-ddp", args: ["--cpu-math", "onednn", "--strategy", "ddp"], peer: "ddp" },
  { name: "llama-8m-bf16", args: ["--cpu-math", "onednn", "--precision", "bfloat16"], peer: "fsdp2-bf16" },
  { name: "llama-8m-f32-wasm", args: ["--cpu-math", "wasm-relaxed"], peer: "fsdp2" },
] as const;

/** Milliseconds of a step, the median of one process's steps. */
export const STEP: Subject = {
  name: "step",
  cases: ({ runtime, python }) =>
    Promise.resolve(CASES.map(({ name, args, peer }): BenchCase => ({
      name,
      unit: "ms",
      higherIsBetter: false,
      ours: async () => {
        const permissions = runtime === "deno" ? ["--allow-all"] : [];
        const launch = ["run", "--nproc-per-node", "2", "bench/ranks/step.ts", ...args];
        const { last } = await runProgram(runtimePath(runtime), [
          "run",
          ...permissions,
          `${ROOT}src/cli/main.ts`,
          ...launch,
        ]);
        return numberAfter(last, "step_ms");
      },
      peer: async () => {
        const script = ["bench/peers/step.py", "--mode", peer];
        const { last } = await runProgram(python, ["-m", "torch.distributed.run", "--nproc_per_node", "2", ...script], {
          OMP_NUM_THREADS: "1",
        });
        return numberAfter(last, "step_ms");
      },
    }))),
};
