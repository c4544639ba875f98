/**
 * All parity cases as Workers of the runtime that runs this, with every combination of axes or a selection; writes the traces to
 * a folder. Started by `main.ts`.
 *
 * @module
 */
import process from "node:process";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { combinations, pairwise } from "./axes.ts";
import { TraceFolder } from "./store.ts";
import { caseGroups, runCases } from "./traces.ts";

const [mathName, steps, path, name, which] = process.argv.slice(2);
const cpuMath = CPU_MATH.find((known) => known === mathName);
if (cpuMath === undefined || path === undefined || name === undefined) {
  throw new Error("expected: <math> <steps> <folder> <name>");
}
const folder = new TraceFolder(path);
const groups = [];
for (const cases of caseGroups(Number(steps), which === "all" ? combinations() : pairwise(combinations()))) {
  groups.push((await runCases(cases, cpuMath)).map((trace) => folder.store(trace)));
}
folder.write(name, groups);
