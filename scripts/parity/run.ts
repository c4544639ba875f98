/**
 * All parity cases in the runtime that runs this; writes the traces as JSON. Started by `main.ts`.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import process from "node:process";
import { CPU_MATH } from "../../src/device/wasm/device.ts";
import { casesOf, runCase, type WholeTrace } from "./traces.ts";

const [mathName, steps, out] = process.argv.slice(2);
const cpuMath = CPU_MATH.find((name) => name === mathName);
if (cpuMath === undefined || out === undefined) throw new Error("expected: <math> <steps> <file>");
const traces: WholeTrace[] = [];
for (const world of [1, 2, 3, 4]) {
  for (const tied of [true, false]) {
    for (const { name, ranks, training } of casesOf(world, tied, Number(steps))) {
      traces.push(await runCase(name, ranks, training, cpuMath));
    }
  }
}
writeFileSync(out, JSON.stringify(traces));
