/**
 * Properties of the native device alone: memory beyond 4 GiB, arbitrary addresses, its end, and the device that is opened where it
 * cannot be opened.
 *
 * @module
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { type DevicePtr, devicePtr } from "../../src/device/device.ts";
import { type NativeDevice, openNativeDevice } from "../../src/device/native/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32 } from "../../src/dtype.ts";
import { ArgumentError, InternalError, UseAfterDisposeError } from "../../src/errors.ts";
import { skipWithoutNative } from "../support/available.ts";
import { programOf, RUNTIME } from "../support/rank_process.ts";

const skip = await skipWithoutNative();

function open(memoryBytes: number): Promise<NativeDevice> {
  return openNativeDevice({ memoryBytes });
}

function floats(device: NativeDevice, at: DevicePtr, n: number): number[] {
  const values = new Float32Array(n);
  device.copyOut(new Uint8Array(values.buffer), at);
  return [...values];
}

test("NativeDevice has more than 4 GiB, all of which kernels and copies reach", { skip }, async () => {
  const device = await open(6 * 2 ** 30);
  const block = device.allocator.allocate(5 * 2 ** 30, "not touched as a whole");
  const high = device.allocator.allocate(2 ** 20, "beyond 4 GiB");
  assert.ok(high - device.status.ptr > 2 ** 32);
  device.kernels.fill({ dtype: float32, n: 2 ** 18, value: 2.5, dst: high });
  assert.deepEqual(floats(device, devicePtr(high + 2 ** 20 - 8), 2), [2.5, 2.5]);

  const low = devicePtr(block + 2 ** 29);
  device.kernels.fill({ dtype: float32, n: 9, value: 1, dst: low });
  const sum = {
    dtype: float32,
    dstDtype: float32,
    n: 9,
    accumulate: false,
    pastCaches: false,
    dst: low,
    sources: [low, high],
  };
  device.kernels.sumRanks(sum);
  assert.deepEqual(floats(device, low, 9), new Array(9).fill(3.5));
  device.copy(high, low, 36);
  assert.deepEqual(floats(device, high, 10), [...new Array(9).fill(3.5), 2.5]);

  // Across the border of what the host sees at once, wherever that lies within these 16 MiB.
  const across = devicePtr(block + 2 ** 30 - 12 * 2 ** 20);
  const pattern = new Uint8Array(2 ** 24).map((_, i) => i * 31 + (i >> 8));
  device.copyIn(across, pattern);
  const found = new Uint8Array(pattern.byteLength);
  device.copyOut(found, across);
  assert.equal(Buffer.compare(found, pattern), 0);
  const parts = [...device.traits.hostViews(across, pattern.byteLength)];
  assert.ok(parts.length <= 2);
  assert.equal(Buffer.compare(Buffer.concat(parts), pattern), 0);
  device.dispose();
});

test(
  "NativeDevice copies past caches what is asked and no byte more, from anywhere to anywhere, and out to the host",
  { skip },
  async () => {
    const device = await open(2 ** 24);
    const room = 2 ** 18;
    const [src, dst] = [device.allocator.allocate(room, "source"), device.allocator.allocate(room, "destination")];
    const pattern = new Uint8Array(room).map((_, i) => i * 31 + (i >> 8));
    device.copyIn(src, pattern);
    for (const length of [0, 1, 63, 64, 65, 1000, 16_383, 16_384, 16_385, 100_001]) {
      for (const [from, to] of [[0, 0], [1, 0], [0, 3], [7, 63], [128, 65]] as const) {
        const expected = new Uint8Array(room);
        device.copyIn(dst, expected);
        expected.set(pattern.subarray(from, from + length), to);
        device.traits.nonTemporal.copy(devicePtr(dst + to), src + from, length);
        const found = new Uint8Array(room);
        device.copyOut(found, dst);
        assert.equal(Buffer.compare(found, expected), 0, `${length} bytes from ${from} to ${to}`);
        const host = new Uint8Array(new SharedArrayBuffer(room));
        device.traits.nonTemporal.copyOut(host.subarray(to, to + length), devicePtr(src + from));
        assert.equal(Buffer.compare(host, expected), 0, `${length} bytes from ${from} to ${to} of the host`);
      }
    }
    device.dispose();
  },
);

test("NativeDevice refuses addresses outside of its memory, before anything is written", { skip }, async () => {
  const device = await open(2 ** 24);
  const { begin, stats: { capacity } } = device.allocator;
  const end = begin + capacity;
  const [inside, outside] = [devicePtr(end - 64), devicePtr(end)];
  device.kernels.fill({ dtype: float32, n: 16, value: 1, dst: inside });
  const refused = (action: () => void, name: RegExp): void =>
    assert.throws(action, (error) => {
      assert.ok(error instanceof InternalError, String(error));
      assert.match(error.message, name);
      assert.match(error.message, /memory lies in \[\d+, \d+\)/);
      return true;
    });
  const fill = (dst: DevicePtr, n: number): void => device.kernels.fill({ dtype: float32, n, value: 7, dst });
  refused(() => fill(inside, 17), /'fill' takes 68 bytes at \d+ for 'dst'/);
  refused(() => fill(devicePtr(0), 1), /'fill' takes 4 bytes at 0/);
  refused(() => fill(devicePtr(2 ** 50), 1), /'fill'/);
  refused(() => fill(inside, 2 ** 60), /'fill'/);
  const copy = { dtype: float32, shape: [2, 4], dstStrides: [4, 1], srcStrides: [13, 1], dst: inside, src: inside };
  refused(() => device.kernels.copyStrided(copy), /for 'src'/);
  const sum = {
    dtype: float32,
    dstDtype: float32,
    n: 1,
    accumulate: false,
    pastCaches: false,
    dst: inside,
    sources: [inside, outside],
  };
  refused(() => device.kernels.sumRanks(sum), /for 'sources'/);
  refused(() => device.copyIn(outside, new Uint8Array(1)), /Cannot copy 1 bytes/);
  refused(() => device.copyOut(new Uint8Array(65), inside), /Cannot copy 65 bytes/);
  refused(() => [...device.traits.hostViews(inside, 65)], /Cannot copy 65 bytes/);
  refused(() => device.copy(inside, devicePtr(8), 8), /Cannot copy 8 bytes at 8/);
  refused(() => device.traits.nonTemporal.copy(devicePtr(8), inside, 8), /Cannot copy 8 bytes at 8/);
  refused(() => device.traits.nonTemporal.copy(inside, inside, 65), /Cannot copy 65 bytes/);
  refused(() => device.traits.nonTemporal.copyOut(new Uint8Array(65), inside), /Cannot copy 65 bytes/);
  assert.deepEqual(floats(device, inside, 16), new Array(16).fill(1));
  device.dispose();
});

test("NativeDevice is an error after its end, not a fault", { skip }, async () => {
  const device = await open(2 ** 24);
  const dst = device.allocator.allocate(64, "gone");
  device.dispose();
  device.dispose();
  const fill = (): void => device.kernels.fill({ dtype: float32, n: 1, value: 0, dst });
  const copyOut = (): void => device.copyOut(new Uint8Array(4), dst);
  for (const use of [fill, copyOut, () => device.status.read(), () => device.math.exp(1)]) {
    assert.throws(use, UseAfterDisposeError);
  }
  await assert.rejects(openNativeDevice({ memoryBytes: 2 ** 20 }), ArgumentError);
});

test("openDevice() takes native kernels where they run, if the choice is left to it", { skip }, async () => {
  const device = await openDevice("cpu", { cpuMath: "auto", memoryBytes: 2 ** 24 });
  assert.equal(device.mathName, "native");
  assert.match(
    device.detail,
    /^native kernels for (x86-64-v[34] \(AVX[^)]*\)|aarch64 \(NEON\)), \d+ threads? \(.*native-[\w-]+\.so\)$/,
  );
  device.dispose();
});

test(
  "openDevice() takes WASM where nothing can be opened, and says why",
  { skip: programOf("deno") === undefined },
  () => {
    const script = `const { openDevice } = await import(${
      JSON.stringify(new URL("../../doors/device.ts", import.meta.url))
    });
    const { mathName, detail } = await openDevice("cpu", { cpuMath: "auto", memoryBytes: 2 ** 24 });
    console.log(mathName + ": " + detail);`;
    const args = ["run", "--no-prompt", "--allow-read", "--allow-env", "--ext=ts", "-"];
    const cwd = fileURLToPath(new URL("../..", import.meta.url));
    const said = execFileSync(programOf("deno") ?? "deno", args, { cwd, input: script, encoding: "utf8" });
    assert.match(said, /^wasm-relaxed: .*: 'auto' may not call native kernels: give Deno --allow-ffi for them\n$/);
  },
);

test("openDevice() says what to set where the system lends no such addresses", { skip }, async () => {
  for (const memoryBytes of [1e15, 1e18, Infinity]) {
    await assert.rejects(openDevice("cpu", { cpuMath: "native", memoryBytes }), {
      name: "UnsupportedError",
      message:
        /^Cannot open a native CPU device of \S+ bytes: the system does not lend so many addresses .*set memoryBytes/,
    });
  }
});

test(
  "openDevice() says why there is no device with as much memory, if the choice is left to it",
  { skip },
  async () => {
    for (const memoryBytes of [1e18, Infinity]) {
      await assert.rejects(openDevice("cpu", { cpuMath: "auto", memoryBytes }), {
        name: "ArgumentError",
        message:
          /^Cannot open a CPU device of \S+ bytes: it must have .* 4 GiB with 'wasm-relaxed' math, and 'auto' found no native kernels \(.* does not lend so many addresses .*\); fullyshard doctor says more$/,
      });
    }
  },
);

test("openDevice() refuses numbers of ranks that no host has", async () => {
  for (const ranksOnHost of [0, -1, 1.5, NaN, Infinity]) {
    for (const cpuMath of ["native", "wasm", "auto"] as const) {
      await assert.rejects(openDevice("cpu", { cpuMath, memoryBytes: 2 ** 24, ranksOnHost }), {
        name: "ArgumentError",
        message: `Cannot open a CPU device of a host that has ${ranksOnHost} ranks: it has at least one`,
      });
    }
  }
});

test("openDevice() names the limit of addresses that keeps any CPU device from being opened", (context) => {
  if (RUNTIME === "deno") return context.skip("Deno itself does not start within so few addresses");
  const door = new URL("../../doors/device.ts", import.meta.url).href;
  const script = `const { openDevice } = await import("${door}");
    for (const cpuMath of ["wasm", "auto"]) {
      try { await openDevice("cpu", { cpuMath }); } catch (error) { console.log(error.name, error.message); }
    }`;
  const said = execFileSync("sh", ["-c", 'ulimit -v 8000000; exec "$0" -e "$1"', process.execPath, script], {
    encoding: "utf8",
  });
  const [wasm = "", auto = ""] = said.split("\n");
  const named = /^UnsupportedError Cannot open a CPU device of \d+ bytes: the runtime gets no such memory .*ulimit -v/;
  assert.match(wasm, named);
  assert.match(auto, named);
  assert.match(auto, /'auto' found no native kernels .*set memoryBytes to less$/);
});
