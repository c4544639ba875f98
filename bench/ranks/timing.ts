/**
 * Functions that the ranks of benchmarks share.
 *
 * @module
 */
import process from "node:process";
import { type CpuMath, type Device, type DevicePtr, openDevice } from "fullyshard/device";

/** Longer names before those that they begin with. */
const MATHS: readonly CpuMath[] = ["native", "wasm-relaxed", "wasm"];

/** Threads of a rank, as the benchmark told all programs. */
export function threadsOfCase(): number {
  return Number(process.env["OMP_NUM_THREADS"] ?? 1);
}

/** Device memory of random numbers in [-1, 1). */
export function randomArray(device: Device, n: number): DevicePtr {
  const dst = device.allocator.allocate(n * 4, "bench");
  device.kernels.uniform({ n, key: 1, offset: 0, low: -1, high: 1, dst });
  return dst;
}

/**
 * Times the cases that the arguments name, `<math>-<case>`, and prints `<math>-<case> <number>` of each, or why it cannot run.
 *
 * @param time times a case on a device
 */
export async function timeCases(time: (device: Device, name: string) => number): Promise<void> {
  for (const math of MATHS) {
    const names = process.argv.slice(2).filter((name) => MATHS.find((one) => name.startsWith(`${one}-`)) === math);
    if (names.length === 0) continue;
    const say = (name: string, text: string): void => void process.stdout.write(`${name} ${text}\n`);
    try {
      const device = await openDevice("cpu", { cpuMath: math, threads: threadsOfCase() });
      for (const name of names) say(name, time(device, name.slice(math.length + 1)).toFixed(3));
      device.dispose();
    } catch (error) {
      for (const name of names) say(name, `cannot: ${error instanceof Error ? error.message : error}`);
    }
  }
}

/** Milliseconds of the best of the calls that fit into half a second, five at least. */
export function bestOf(call: () => void): number {
  call();
  let best = Infinity;
  const until = performance.now() + 500;
  for (let calls = 0; calls < 5 || performance.now() < until; calls++) {
    const started = performance.now();
    call();
    best = Math.min(best, performance.now() - started);
  }
  return best;
}
