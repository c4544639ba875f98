/**
 * A rank that gathers and reduces arrays. Rank 0 prints what its host sent and received meanwhile, and a digest of the results, as
 * one line of JSON.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import process from "node:process";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { float32 } from "../../mod.ts";
import type { LinkBytes } from "./link_bytes.ts";

const BYTES: number = 2 ** 22;
const CALLS = 8;

/** Bytes over this host's link, both ways, since it was made. */
function overLink(): number {
  const line = readFileSync("/proc/self/net/dev", "utf8").split("\n").find((text) => text.trim().startsWith("e0:"));
  const numbers = line?.split(":")[1]?.trim().split(/\s+/).map(Number) ?? [];
  const [received, sent] = [numbers[0], numbers[8]];
  if (received === undefined || sent === undefined) throw new Error("no link 'e0' on this host");
  return received + sent;
}

const device = await openDevice("cpu", { cpuMath: "auto", memoryBytes: 2 ** 27 });
using group = await openProcessGroup({ device });
const part = BYTES / group.size;
const [src, dst] = [device.allocator.allocate(BYTES, "source"), device.allocator.allocate(BYTES, "result")];
const values = Float32Array.from({ length: BYTES / 4 }, (_, i) => Math.fround((i % 1009 - 504) / (group.rank + 3)));
device.copyIn(src, new Uint8Array(values.buffer));
const window = group.openWindow(Array.from({ length: group.size }, () => part), "link");
window.beginWrite("link");
device.copyIn(window.pointer, new Uint8Array(values.buffer, 0, part));
window.endWrite();
const slices = Array.from({ length: group.size }, (_, rank) => ({ offset: rank * part / 4, length: part / 4 }));
const scale = device.scalars.make(0.5);
const calls: Readonly<Record<"gather" | "reduceScatter", () => void>> = {
  gather: () => window.gather(dst, slices.map(({ offset }) => offset * 4), "link", "forward").wait(),
  reduceScatter: () => {
    const args = { src, dst, dtype: float32, dstDtype: float32, slices, scale, accumulate: false };
    group.reduceScatter(args, "link").wait();
  },
};

const digest = createHash("sha256");
function measure(call: () => void): number {
  call();
  group.barrier("begun");
  const before = overLink();
  for (let i = 0; i < CALLS; i++) call();
  group.barrier("ended");
  const bytes = overLink() - before;
  const result = new Uint8Array(BYTES);
  device.copyOut(result, dst);
  digest.update(result);
  return bytes / CALLS;
}
const [gather, reduceScatter] = [measure(calls.gather), measure(calls.reduceScatter)];
const result: LinkBytes = { gather, reduceScatter, digest: digest.digest("hex") };
if (group.rank === 0) process.stdout.write(`${JSON.stringify(result)}\n`);
