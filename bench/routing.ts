/**
 * Steps of a mixture of experts on one core: neither time nor memory should depend on which tokens go to which expert.
 *
 * @module
 */
import { rank, runProgram } from "./process.ts";
import type { Subject } from "./subject.ts";

/** Most bytes in use at once, of each case as it was seen last. */
const peaks = new Map<string, number>();

/** Milliseconds of a step. */
export const ROUTING: Subject = {
  name: "routing",
  unit: "ms",
  higherIsBetter: false,
  isApart: false,
  cases: [{ name: "even" }, { name: "random" }, { name: "one" }],
  ours: async ({ runtime }, names) => {
    const [path, ...args] = rank(runtime, "bench/ranks/routing.ts", ...names);
    const { output } = await runProgram(path, args);
    const times = new Map<string, number>();
    for (const line of output.trim().split("\n")) {
      const [name = "", ms, peak] = line.split(" ");
      times.set(name, Number(ms));
      peaks.set(name, Number(peak));
    }
    return times;
  },
  more: (_setting, name) => Promise.resolve({ peakBytes: peaks.get(name) ?? NaN }),
};
