/** A process that runs scenarios as a rank of `shm`, each in a run of its own; prints what became of them. @module */
import process from "node:process";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { openShm } from "../../src/comm/transports/shm.ts";
import type { ShmOptions } from "../../src/comm/transports/shm.ts";
import { runScenarios } from "../conformance/transport.ts";
import { openCommDevice } from "../support/comm_device.ts";

/** What a process is told to do. */
export interface ShmBatch {
  readonly scenarios: readonly string[];
  /** Options of the transport; `run` heads the name of each scenario's run. */
  readonly options: ShmOptions;
  readonly memoryBytes?: number;
}

const batch: ShmBatch = JSON.parse(process.argv[2] ?? "{}");
const device = await openCommDevice(batch.memoryBytes);
const report = (text: string): void => void process.stderr.write(`${text}\n`);
const outcomes = await runScenarios(batch.scenarios, device, async (index) => {
  const run = `${batch.options.run}/${index}`;
  return new ProcessGroup(await openShm(device, { ...batch.options, run, report }));
});
process.stdout.write(`${JSON.stringify(outcomes)}\n`);
