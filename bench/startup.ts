/**
 * Two ranks that join, do one all-reduce and exit, launcher included.
 *
 * @module
 */
import { ROOT, runProgram, runtimePath } from "./process.ts";
import type { Subject } from "./subject.ts";

/** Seconds from start to exit. */
export const STARTUP: Subject = {
  name: "startup",
  cases: ({ runtime, python }) =>
    Promise.resolve([{
      name: "two-ranks-one-all-reduce",
      unit: "s",
      higherIsBetter: false,
      ours: async () => {
        const launch = ["run", "--nproc-per-node", "2", "bench/ranks/all_reduce.ts"];
        const permissions = runtime === "deno" ? ["--allow-all"] : [];
        return (await runProgram(runtimePath(runtime), ["run", ...permissions, `${ROOT}src/cli/main.ts`, ...launch]))
          .seconds;
      },
      peer: async () => {
        const args = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "bench/peers/all_reduce.py"];
        return (await runProgram(python, args, { OMP_NUM_THREADS: "1" })).seconds;
      },
    }]),
};
