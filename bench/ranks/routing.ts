/**
 * Times a forward and backward through 16 experts, of which each token goes to 2: `routing.ts <case>…` prints the milliseconds of
 * the best of each, and the most bytes in use at once. Tokens go to experts in turn, at random, or all to the same two.
 *
 * @module
 */
import process from "node:process";
import { int32, scope, tensor } from "fullyshard";
import { openDevice } from "fullyshard/device";
import { initializeParameters, ones, randn } from "fullyshard/nn";
import { keyOf, uniformInt } from "fullyshard/testing";
import { Experts } from "../../src/nn/experts.ts";
import { bestOf } from "./timing.ts";

const [rows, topK, numExperts] = [1024, 2, 16];
const key = keyOf(0, "routing");

/** The second expert of a token is another one than the first. */
const FIRST: Readonly<Record<string, (row: number) => number>> = {
  even: (row) => row * topK % numExperts,
  random: (row) => uniformInt(key, row, numExperts),
  one: () => 3,
};

const device = await openDevice("cpu");
const init = { kind: "normal", mean: 0, std: 0.02 } as const;
const experts = new Experts(device, { hiddenSize: 256, intermediateSize: 256, numExperts, activation: "silu", init });
initializeParameters(experts, 0);
const x = randn(device, [rows, 256], 1);
const weights = ones(device, [rows, topK]);
for (const name of process.argv.slice(2)) {
  const first = FIRST[name];
  if (first === undefined) throw new Error(`no case '${name}'`);
  const numbers = Array.from({ length: rows * topK }, (_, i) => (first(Math.floor(i / topK)) + i % topK) % numExperts);
  const chosen = tensor(device, numbers, { shape: [rows, topK], dtype: int32 }).persist();
  device.allocator.resetPeak();
  const ms = bestOf(() => {
    using _frame = scope();
    experts.zeroGrad();
    experts.call(x, { experts: chosen, weights }).sum().backward();
  });
  process.stdout.write(`${name} ${ms.toFixed(3)} ${device.allocator.stats.peak}\n`);
  chosen.dispose();
}
