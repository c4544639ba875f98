/**
 * Two ranks that join, do one all-reduce and exit, launcher included.
 *
 * @module
 */
import { launch, runProgram } from "./process.ts";
import type { Subject } from "./subject.ts";

const name = "two-ranks-one-all-reduce";

/** Seconds from start to exit. */
export const STARTUP: Subject = {
  name: "startup",
  unit: "s",
  higherIsBetter: false,
  isApart: false,
  cases: [{ name, target: 15 }],
  ours: async ({ runtime }) => {
    const [path, ...args] = launch(runtime, 2, "bench/ranks/all_reduce.ts");
    return new Map([[name, (await runProgram(path, args)).seconds]]);
  },
  peers: {
    torch: async ({ python }) => {
      const args = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "bench/peers/all_reduce.py"];
      return new Map([[name, (await runProgram(python, args, { OMP_NUM_THREADS: "1" })).seconds]]);
    },
  },
};
