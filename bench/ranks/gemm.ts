/**
 * Times products of two square float32 matrices and prints the best rate.
 *
 * @module
 */
import process from "node:process";
import { type CpuMath, openDevice } from "fullyshard/device";
import { randn } from "fullyshard/nn";
import { scope } from "fullyshard";

const [math = "wasm", sizeText = "512"] = process.argv.slice(2);
const size = Number(sizeText);
const known: readonly CpuMath[] = ["auto", "native", "wasm", "wasm-relaxed", "onednn"];
const cpuMath = known.find((name) => name === math);
if (cpuMath === undefined) throw new Error(`no math '${math}'`);
const device = await openDevice("cpu", { cpuMath });
const [a, b] = [randn(device, [size, size], 1), randn(device, [size, size], 2)];
let best = Infinity;
for (const until = performance.now() + 1500; performance.now() < until;) {
  using _frame = scope();
  const started = performance.now();
  a.matmul(b);
  best = Math.min(best, performance.now() - started);
}
process.stdout.write(`gflops ${(2 * size ** 3 / best / 1e6).toFixed(2)}\n`);
