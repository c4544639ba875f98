/** Windows whose memory is offloaded. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { OffloadedWindow } from "../../src/comm/offloaded_window.ts";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { openDevice } from "../../src/device/registry.ts";
import { UseAfterDisposeError } from "../../src/errors.ts";

test("OffloadedWindow.gather() that fails keeps no memory of the device", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  const group = await openProcessGroup({ device });
  const window = new OffloadedWindow(group, device, 1024, "unit");
  const whole = device.allocator.allocate(1024, "whole");
  window.gather(whole, [0], "unit", "forward").wait();
  const { inUse } = device.allocator.stats;
  group.dispose();
  assert.throws(() => window.gather(whole, [0], "unit", "forward"), UseAfterDisposeError);
  assert.equal(device.allocator.stats.inUse, inUse);
  window.dispose();
  device.dispose();
});
