/**
 * Runs families under the runtime that runs this, and prints their items, a line each. Started by `main.ts`.
 *
 * @module
 */
import process from "node:process";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { checkFamily } from "./items.ts";

const [mathName, steps, ...families] = process.argv.slice(2);
const cpuMath = CPU_MATH.find((name) => name === mathName);
if (cpuMath === undefined) throw new Error("expected: <math> <steps> <family> ...");
for (const family of families) {
  for (const item of await checkFamily(family, { cpuMath, steps: Number(steps) })) {
    process.stdout.write(`${JSON.stringify(item)}\n`);
  }
}
