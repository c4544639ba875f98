/**
 * Collectives of two ranks on one host.
 *
 * @module
 */
import { numberAfter, ROOT, runProgram, runtimePath } from "./process.ts";
import type { BenchCase, Subject } from "./subject.ts";

/** Microseconds of a call, the best of many rounds. */
export const COLLECTIVES: Subject = {
  name: "collectives",
  cases: ({ runtime }) =>
    Promise.resolve(["all-reduce-8B", "reduce-scatter-1MiB", "gather-64MiB"].map((name): BenchCase => ({
      name,
      unit: "us",
      higherIsBetter: false,
      ours: async () => {
        const lead = runtime === "deno" ? ["run", "--allow-all"] : ["run"];
        const launch = ["run", "--nproc-per-node", "2", "bench/ranks/collectives.ts", name];
        const { last } = await runProgram(runtimePath(runtime), [...lead, `${ROOT}src/cli/main.ts`, ...launch]);
        return numberAfter(last, "us");
      },
    }))),
};
