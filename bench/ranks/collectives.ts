/**
 * A rank that times one collective; rank 0 prints the best of many short rounds, in microseconds.
 *
 * @module
 */
import process from "node:process";
import { float32 } from "fullyshard";
import { openDevice } from "fullyshard/device";
import { openProcessGroup } from "fullyshard/comm";

const MIB = 2 ** 20;
const ROUNDS = 60;

const device = await openDevice("cpu");
using group = await openProcessGroup({ device });
const all = Array.from({ length: group.size }, (_, rank) => rank);
const take = (bytes: number) => device.allocator.allocate(bytes, "bench");

/** What is timed: how often in a round, and the call. */
const collectives: Readonly<Record<string, () => { readonly times: number; call(): void }>> = {
  "all-reduce-8B": () => {
    const ptr = take(8);
    return { times: 100, call: () => group.allReduce(ptr, 2, float32, { unit: "bench" }).wait() };
  },
  "reduce-scatter-1MiB": () => {
    const length = MIB / 4 / group.size;
    const runs = all.map((rank) => ({ offset: rank * length, length }));
    const args = {
      src: take(MIB),
      dst: take(MIB),
      dtype: float32,
      dstDtype: float32,
      runs,
      scale: device.scalars.make(0.5),
      accumulate: false,
    };
    return { times: 10, call: () => group.reduceScatter(args, "bench").wait() };
  },
  "gather-64MiB": () => {
    const bytes = 64 * MIB / group.size;
    const window = group.openWindow(all.map(() => bytes), "bench");
    const dst = take(64 * MIB);
    return { times: 1, call: () => window.gather(dst, all.map((rank) => rank * bytes), "bench", "forward").wait() };
  },
};

const name = process.argv[2] ?? "";
const { times, call } = collectives[name]?.() ?? { times: 1, call: (): void => {} };
let best = Infinity;
for (let round = 0; round < ROUNDS; round++) {
  group.barrier("round");
  const started = performance.now();
  for (let i = 0; i < times; i++) call();
  best = Math.min(best, (performance.now() - started) / times * 1000);
}
if (group.rank === 0) process.stdout.write(`${name} ${best.toFixed(2)}\n`);
