/**
 * A rank that times one collective; rank 0 prints the best of many short rounds, in microseconds.
 *
 * @module
 */
import process from "node:process";
import { float32 } from "fullyshard";
import { openDevice } from "fullyshard/device";
import { openProcessGroup } from "fullyshard/comm";

const ROUNDS = 60;

const device = await openDevice("cpu", { cpuMath: "auto" });
using group = await openProcessGroup({ device });
const all = Array.from({ length: group.size }, (_, rank) => rank);
const take = (bytes: number) => device.allocator.allocate(bytes, "bench");

/** The calls that are timed, by the bytes of the full array. */
const collectives: Readonly<Record<string, (bytes: number) => () => void>> = {
  "all-reduce": (bytes) => {
    const ptr = take(bytes);
    return () => group.allReduce(ptr, bytes / 4, float32, { unit: "bench" }).wait();
  },
  "reduce-scatter": (bytes) => {
    const length = bytes / 4 / group.size;
    const slices = all.map((rank) => ({ offset: rank * length, length }));
    const args = {
      src: take(bytes),
      dst: take(bytes),
      dtype: float32,
      dstDtype: float32,
      slices,
      scale: device.scalars.make(0.5),
      accumulate: false,
    };
    return () => group.reduceScatter(args, "bench").wait();
  },
  gather: (bytes) => {
    const part = bytes / group.size;
    const window = group.openWindow(all.map(() => part), "bench");
    const dst = take(bytes);
    return () => window.gather(dst, all.map((rank) => rank * part), "bench", "forward").wait();
  },
};

const name = process.argv[2] ?? "";
const [, what = "", number, unit = ""] = /^(.*)-(\d+)(B|KiB|MiB)$/.exec(name) ?? [];
const bytes = Number(number) * ({ B: 1, KiB: 2 ** 10, MiB: 2 ** 20 }[unit] ?? NaN);
const call = collectives[what]?.(bytes);
if (call === undefined) throw new Error(`no case '${name}'`);
// As many calls in a round as are not over before a clock has seen them.
const times = Math.max(1, Math.min(100, 2 ** 23 / bytes));
// Calls that are not timed: engines compile what runs often.
for (let i = 0; i < Math.min(20_000, 2 ** 28 / bytes); i++) call();
let best = Infinity;
for (let round = 0; round < ROUNDS; round++) {
  group.barrier("round");
  const started = performance.now();
  for (let i = 0; i < times; i++) call();
  best = Math.min(best, (performance.now() - started) / times * 1000);
}
if (group.rank === 0) process.stdout.write(`${name} ${best.toFixed(2)}\n`);
