/**
 * The cost of calls that compute next to nothing.
 *
 * @module
 */
import { rank } from "./process.ts";
import { program, type Subject } from "./subject.ts";

/** Microseconds. */
export const DISPATCH: Subject = {
  name: "dispatch",
  unit: "us",
  higherIsBetter: false,
  takesThreads: true,
  isApart: false,
  cases: [{ name: "add-4", target: 1.3 }, { name: "mlp-forward-backward", target: 2 }, { name: "adamw-4", target: 2 }],
  ours: program(({ runtime }, names) => rank(runtime, "bench/ranks/dispatch.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [python, "bench/peers/dispatch.py", ...names]),
  },
};
