/** A process that joins as its environment says, and adds up rank + 1. @module */
import process from "node:process";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { openCommDevice } from "../support/comm_device.ts";

try {
  using group = await openProcessGroup({
    backend: process.argv.includes("nccl") ? "nccl" : "auto",
    device: await openCommDevice(),
    stagingBytes: 2 ** 20,
    joinTimeoutSeconds: 20,
  });
  const [sum] = group.sum([group.rank + 1], "ranks");
  process.stdout.write(`${group.kind} ${group.rank} of ${group.size}: ${sum}\n`);
} catch (error) {
  process.stdout.write(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
}
