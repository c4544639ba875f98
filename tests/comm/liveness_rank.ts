/**
 * A process that joins `shm` and then does what it is told: prints `joined` and, at its end, how it ended.
 *
 * @module
 */
import process from "node:process";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { openShm } from "../../src/comm/transports/shm.ts";
import type { ShmOptions } from "../../src/comm/transports/shm.ts";
import { float32 } from "../../src/dtype.ts";
import { sleep } from "../conformance/transport_values.ts";
import { openCommDevice } from "../support/comm_device.ts";

/** What the process is told: it does these in order. */
export interface Orders {
  readonly options: ShmOptions;
  readonly orders: readonly ("reduce" | "sleep" | "doze" | "hang" | "window" | "throw")[];
}

const { options, orders }: Orders = JSON.parse(process.argv[2] ?? "{}");
const say = (text: string): void => void process.stdout.write(`${text}\n`);
try {
  const device = await openCommDevice(2 ** 26);
  const group = new ProcessGroup(await openShm(device, { ...options, report: (text) => say(`late: ${text}`) }));
  say("joined");
  // Lets the line out before this thread blocks.
  await new Promise((resolve) => setTimeout(resolve, 20));
  const ptr = device.allocator.allocate(4096, "test");
  for (const order of orders) {
    if (order === "reduce") group.allReduce(ptr, 1000, float32, { label: "gradient of layers.3" }).wait();
    else if (order === "window") group.openWindow([2 ** 44, 2 ** 44], "embedding");
    else if (order === "throw") throw new Error("out of coffee");
    else sleep(order === "sleep" ? 1000 : order === "doze" ? 100 : 2 ** 31 - 1);
  }
  group.dispose();
  say("ended well");
} catch (error) {
  say(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
}
