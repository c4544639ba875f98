/**
 * One rank of a parity run: a process that shares memory with the others. Started by `processes.ts`.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import process from "node:process";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { type Trace, train, type TrainingCase } from "./training.ts";

const [mathName, text, out] = process.argv.slice(2);
const cpuMath = CPU_MATH.find((name) => name === mathName);
if (cpuMath === undefined || text === undefined || out === undefined) {
  throw new Error("expected: <math> <trainings> <file>");
}
const trainings: readonly TrainingCase[] = JSON.parse(text);
const device = await openDevice("cpu", { cpuMath, memoryBytes: 2 ** 28 });
using group = await openProcessGroup({ device, backend: "shm" });
const traces: Trace[] = [];
for (const training of trainings) traces.push(await train(device, group, training));
group.barrier("end");
const asNumbers = (_key: string, value: unknown): unknown => value instanceof Float32Array ? [...value] : value;
writeFileSync(out, JSON.stringify(traces, asNumbers));
