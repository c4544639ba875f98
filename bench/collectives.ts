/**
 * Collectives of two ranks on one host, against gloo.
 *
 * @module
 */
import { launch } from "./process.ts";
import { program, type Subject } from "./subject.ts";

/** Microseconds of a call, the best of many rounds. */
export const COLLECTIVES: Subject = {
  name: "collectives",
  unit: "us",
  higherIsBetter: false,
  isApart: true,
  cases: [
    { name: "all-reduce-8B", target: 80 },
    { name: "reduce-scatter-1MiB", target: 12 },
    { name: "gather-64MiB", target: 8 },
  ],
  ours: program(({ runtime }, names) => launch(runtime, 2, "bench/ranks/collectives.ts", ...names)),
  torch: program(({ python }, names) => [
    python,
    ...["-m", "torch.distributed.run", "--nproc_per_node", "2", "bench/peers/collectives.py"],
    ...names,
  ]),
};
