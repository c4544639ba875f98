/** Work memory of an optimizer's step: what uses in turn share, and when it has addresses. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { WorkMemory } from "../../src/optim/work_memory.ts";
import { failAllocation } from "../support/failing_memory.ts";

test("WorkMemory gives uses in turn the same memory, as large as the largest, and frees it", async () => {
  const device = await openDevice("cpu");
  const before = device.allocator.stats.inUse;
  {
    using work = new WorkMemory();
    const shared = work.plan(device, 1);
    const uses = work.inTurn([
      () => [work.plan(device, 256), work.plan(device, 300)],
      () => work.inTurn([() => work.plan(device, 100), () => work.plan(device, 512)]),
    ]);
    const last = work.plan(device, 256);
    assert.throws(() => shared.ptr, /work memory is used before it is allocated/);
    work.allocate();
    assert.equal(device.allocator.stats.inUse - before, 256 + (256 + 512) + 256);
    const places = [shared, ...uses.flat(), last].map(({ ptr }) => ptr - shared.ptr);
    assert.deepEqual(places, [0, 256, 512, 256, 256, 1024]);
  }
  assert.equal(device.allocator.stats.inUse, before);
});

test("WorkMemory allocates once on a device, and nothing where nothing was planned", async () => {
  const device = await openDevice("cpu");
  using failing = failAllocation([device.allocator], -1);
  using work = new WorkMemory();
  work.allocate();
  assert.equal(failing.count, 0);
  work.inTurn([() => work.plan(device, 1000), () => work.plan(device, 2000)]);
  work.allocate();
  assert.equal(failing.count, 1);
});
