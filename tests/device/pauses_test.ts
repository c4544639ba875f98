/** What the host does between kernels. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { float32 } from "../../src/dtype.ts";

test("a device's pauses come between kernels, not within each other, until they are given back", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm" });
  const { pauses } = device.traits;
  assert.ok(pauses !== undefined);
  const dst = device.allocator.allocate(64, "test");
  const compute = (isEnough: () => boolean): void => {
    const end = performance.now() + 20_000;
    do device.kernels.fill({ dtype: float32, n: 16, value: 1, dst }); while (!isEnough() && performance.now() < end);
  };
  const begun: number[] = [];
  const ended: number[] = [];
  let depth = 0;
  const use = pauses.use(() => {
    assert.equal(depth++, 0);
    begun.push(performance.now());
    let calls = 0;
    compute(() => ++calls === 10); // an action may compute
    ended.push(performance.now());
    depth--;
  });
  compute(() => begun.length === 5);
  assert.equal(begun.length, 5);
  for (const [i, time] of begun.slice(1).entries()) {
    assert.ok(time - (ended[i] ?? NaN) >= 0.4, "kernels go on meanwhile");
  }
  use[Symbol.dispose]();
  let calls = 0;
  compute(() => ++calls === 1000);
  assert.equal(begun.length, 5);
  device.allocator.free(dst);
  device.dispose();
});
