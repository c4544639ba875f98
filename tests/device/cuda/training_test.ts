/**
 * A small Llama trains on a CUDA device made of doubles of NVIDIA's libraries as it does on the CPU, and no access of it is a
 * race.
 *
 * @module
 */
import assert from "node:assert/strict";
import { openCudaDevice } from "../../../src/device/cuda/device.ts";
import { openDevice } from "../../../src/device/registry.ts";
import { buildCudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";
import { onlyInAll, sharedTest as test } from "../../support/share.ts";
import { requireSameSteps, train } from "./llama.ts";

const lacking = lackingForTwin();

for (
  const [order, code, steps] of [
    ["a random", 2, 3],
    ...onlyInAll([["a random", 2, 20], ["a descending", 1, 8]] as const),
  ] as const
) {
  test(
    `a small Llama trains ${steps} steps on the twin of CUDA as on the CPU, with threads in ${order} order`,
    { skip: lacking },
    async () => {
      const run = { steps, batch: 2 };
      const cpu = await openDevice("cpu", { memoryBytes: 2 ** 26 });
      const expected = train(cpu, run);
      cpu.dispose();
      const twin = await buildCudaTwin();
      const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 28 });
      twin.runtime.symbols.twinSetOrder(code);
      requireSameSteps(train(device, run), expected);
      device.dispose();
      assert.equal(twinReports(twin), "");
    },
  );
}
