/** A process that leaves its threads behind, and ends as it is told: by itself, by an exit or by an error. @module */
import process from "node:process";
import { openDevice } from "../../../doors/device.ts";
import { trained } from "../trained.ts";

const device = await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 27, threads: 3 });
trained(device);
const [how] = process.argv.slice(2);
if (how === "disposed") device.dispose();
if (how === "exit") process.exit(3);
if (how === "error") throw new RangeError("out of tea");
