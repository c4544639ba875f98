/**
 * A process that joins `shm` and then does what it is told: prints `joined` and, at its end, how it ended.
 *
 * @module
 */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import process from "node:process";
import { Posix } from "../../ffi/posix.ts";
import { together } from "../../src/checkpoint/ranks.ts";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { openShm } from "../../src/comm/transports/shm.ts";
import type { ShmOptions } from "../../src/comm/transports/shm.ts";
import { float32 } from "../../src/dtype.ts";
import { NativeError } from "../../src/errors.ts";
import { sleep } from "../conformance/transport_values.ts";
import { openCommDevice } from "../support/comm_device.ts";

/** What the process is told: it does these in order. */
export interface Orders {
  readonly options: ShmOptions;
  readonly orders: readonly ("reduce" | "sleep" | "doze" | "hang" | "window" | "throw" | "work" | Refusal)[];
  /** There is no room in the shared-memory directory. */
  readonly full?: boolean;
}

/** A window or group that fails on rank 1: its own part cannot be made, or what others made cannot be opened. */
type Refusal = "large window" | "closed window" | "large group" | "closed group";

const { options, orders, full }: Orders = JSON.parse(process.argv[2] ?? "{}");
const say = (text: string): void => void process.stdout.write(`${text}\n`);
const refuse = (call: string, code: string): never => {
  throw new NativeError("libc", call, 0, "on purpose", code);
};

function isRefusal(order: string): order is Refusal {
  return /^(large|closed) (window|group)$/.test(order);
}

/** What this process holds of the shared-memory directory, and of its device. */
function holdings(bytes: number): string {
  const { directory = "" } = options;
  const descriptors = readdirSync("/proc/self/fd").filter((name) => {
    try {
      return readlinkSync(`/proc/self/fd/${name}`).startsWith(directory);
    } catch {
      return false; // the one that lists them
    }
  });
  const maps = readFileSync("/proc/self/maps", "utf8").split("\n").filter((line) => line.includes(directory));
  const files = readdirSync(directory).filter((name) => !name.includes("lock-"));
  return JSON.stringify({ bytes, descriptors: descriptors.length, maps: maps.length, files });
}

/** Does what must fail on all ranks, and tells if anything is left of it. */
function attempt(group: ProcessGroup, kind: Refusal, inUse: () => number): void {
  const before = holdings(inUse());
  group.barrier("all know what they had");
  const { mapShared, reserve } = Posix.prototype;
  if (group.rank === 1 && kind.startsWith("closed")) Posix.prototype.mapShared = () => refuse("mmap", "ENOMEM");
  if (group.rank === 1 && kind === "large group") Posix.prototype.reserve = () => refuse("posix_fallocate", "EIO");
  let failure = "none";
  try {
    // The device has 64 MiB: there is room for the second part outside it only.
    if (kind.endsWith("window")) group.openWindow([2 ** 20, kind === "large window" ? 2 ** 26 : 2 ** 20], "embedding");
    else group.split(kind === "large group" ? [group.rank] : [0, 1], "shard");
  } catch (error) {
    failure = error instanceof Error ? error.message : String(error);
  }
  Object.assign(Posix.prototype, { mapShared, reserve });
  group.barrier("all have undone it");
  const after = holdings(inUse());
  say(`${kind}: ${after === before ? "nothing left" : `${before} became ${after}`}; ${failure}`);
  group.barrier("all have looked");
}

if (full === true) Posix.prototype.reserve = () => refuse("posix_fallocate", "ENOSPC");
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
    else if (order === "work") await together(group, "save", () => group.rank === 0 ? sleep(1000) : undefined);
    else if (isRefusal(order)) {
      attempt(group, order, () => device.allocator.stats.inUse);
    } else if (order === "throw") throw new Error("out of coffee");
    else sleep(order === "sleep" ? 1000 : order === "doze" ? 100 : 2 ** 31 - 1);
  }
  group.dispose();
  say("ended well");
} catch (error) {
  say(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
}
