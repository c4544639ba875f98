/**
 * Times calls that compute next to nothing: `dispatch.ts <case>…` prints the microseconds of the best of each.
 *
 * @module
 */
import process from "node:process";
import { AdamW, noGrad, scope } from "fullyshard";
import { openDevice } from "fullyshard/device";
import { initializeParameters, Linear, randn } from "fullyshard/nn";
import { bestOf, threadsOfCase } from "./timing.ts";

const TIMES = 10;

const device = await openDevice("cpu", { cpuMath: "auto", threads: threadsOfCase() });

const [first, second] = [new Linear(device, 4, 4), new Linear(device, 4, 4)];
const parameters = [first, second].flatMap(({ weight, bias }) => bias === undefined ? [weight] : [weight, bias]);
const [a, b, x] = [randn(device, [4], 1), randn(device, [4], 2), randn(device, [2, 4], 3)];
const optimizer = new AdamW(parameters, { learningRate: 1e-3 });

function forwardBackward(): void {
  optimizer.zeroGrad();
  second.call(first.call(x).gelu()).sum().backward();
}

const CALLS: Readonly<Record<string, () => void>> = {
  "add-4": () => noGrad(() => a.add(b)),
  "mlp-forward-backward": forwardBackward,
  "adamw-4": () => optimizer.step(),
};

initializeParameters(first, 0);
initializeParameters(second, 1);
forwardBackward();
for (const name of process.argv.slice(2)) {
  const call = CALLS[name];
  if (call === undefined) throw new Error(`no case '${name}'`);
  const ms = bestOf(() => {
    for (let i = 0; i < TIMES; i++) {
      using _frame = scope();
      call();
    }
  });
  process.stdout.write(`${name} ${(ms * 1000 / TIMES).toFixed(3)}\n`);
}
