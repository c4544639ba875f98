/**
 * All parity cases as Workers of the runtime that runs this, with every combination of axes or a selection; writes the traces as
 * JSON. Started by `main.ts`.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import process from "node:process";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { combinations, pairwise } from "./axes.ts";
import { caseGroups, runCases, type WholeTrace } from "./traces.ts";

const [mathName, steps, out, which] = process.argv.slice(2);
const cpuMath = CPU_MATH.find((name) => name === mathName);
if (cpuMath === undefined || out === undefined) throw new Error("expected: <math> <steps> <file>");
const groups: WholeTrace[][] = [];
for (const cases of caseGroups(Number(steps), which === "all" ? combinations() : pairwise(combinations()))) {
  groups.push([...await runCases(cases, cpuMath)]);
}
writeFileSync(out, JSON.stringify(groups));
