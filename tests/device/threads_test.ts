/**
 * Threads of a rank: the bits of a training by any number of them, in Workers that are ranks too, their end with their device and
 * with the process, and what refuses to start.
 *
 * @module
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { runLoopback } from "../../src/comm/loopback_workers.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";
import { openNativeLibrary } from "../../src/device/native/library.ts";
import { openThreads } from "../../src/device/native/threads.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32 } from "../../src/dtype.ts";
import { ArgumentError, UnsupportedError } from "../../src/errors.ts";
import { openPosix } from "../../src/ffi/posix.ts";
import { threadsOfRank } from "../../src/runtime/processes.ts";
import { skipWithoutNative } from "../support/available.ts";
import { programOf, startRank } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { trained } from "./trained.ts";

const memoryBytes = 2 ** 27;

const skip = await skipWithoutNative();

async function bitsOf(threads: number): Promise<Uint32Array[]> {
  const device = await openDevice("cpu", { cpuMath: "native", memoryBytes, threads });
  try {
    return trained(device);
  } finally {
    device.dispose();
  }
}

test("a training has the same losses and weights on 1, 2 and 3 threads", { skip }, async () => {
  const alone = await bitsOf(1);
  assert.ok(alone.length > 10 && alone[0]?.length === 3);
  for (const threads of [2, 3]) assert.deepEqual(await bitsOf(threads), alone);
});

test("ranks that are Workers have threads of their own", { skip }, async () => {
  const alone = await bitsOf(1);
  const ranks = await runLoopback(2, new URL("./scripts/threads_rank.ts", import.meta.url), 2);
  assert.deepEqual(ranks, [alone, alone]);
});

for (const [how, code] of [["disposed", 0], ["alone", 0], ["exit", 3], ["error", 1]] as const) {
  test(`a process with threads ends: ${how}`, { skip }, async () => {
    const rank = startRank(new URL("./scripts/threads_end.ts", import.meta.url), [how]);
    const hung = setTimeout(() => rank.child.kill("SIGKILL"), 120_000);
    assert.equal(await rank.ended, code, rank.stderr);
    clearTimeout(hung);
    if (how === "error") assert.match(rank.stderr, /out of tea/);
  });
}

test("dispose() ends the threads: devices that come and go leave none", { skip }, async () => {
  const count = (): number => readdirSync("/proc/self/task").length;
  const open = async (): Promise<void> => {
    const device = await openNativeDevice({ memoryBytes: 2 ** 24, threads: 3, leastWork: 1 });
    const dst = device.allocator.allocate(4000, "sum");
    device.kernels.fill({ dtype: float32, n: 1000, value: 1, dst });
    for (let i = 0; i < 200; i++) device.kernels.scale({ dtype: float32, n: 1000, factor: -1, dst, src: dst });
    const values = new Float32Array(1000);
    device.copyOut(new Uint8Array(values.buffer), dst);
    assert.ok(values.every((value) => value === 1));
    device.dispose();
  };
  await open();
  const before = count();
  for (let i = 0; i < 8; i++) await open();
  // Runtimes take their time to end a thread, and keep some of their own.
  for (let i = 0; i < 500 && count() > before + 8; i++) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(count() <= before + 8, `${before} threads became ${count()}`);
});

test("openDevice() refuses numbers of threads that cannot be", { skip }, async () => {
  for (const threads of [0, -1, 1.5, NaN, 1025]) {
    const message = `Cannot run ${threads} threads: a rank has from 1 to 1024`;
    await assert.rejects(openDevice("cpu", { cpuMath: "native", memoryBytes, threads }), new ArgumentError(message));
  }
});

test("openDevice() refuses threads with WASM, by name", async () => {
  for (const cpuMath of ["wasm", "wasm-relaxed"] as const) {
    await assert.rejects(openDevice("cpu", { cpuMath, memoryBytes, threads: 2 }), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.equal(
        error.message,
        `Cannot run 2 threads with '${cpuMath}' math, which has one: leave threads out, or use cpuMath 'native'`,
      );
      return true;
    });
    (await openDevice("cpu", { cpuMath, memoryBytes, threads: 1 })).dispose();
  }
});

test("openDevice() has as many threads as cores by ranks, unless told", { skip }, async () => {
  const [alone, crowded] = [threadsOfRank(1), threadsOfRank(10_000)];
  assert.equal(crowded, 1);
  for (const [ranksOnHost, threads] of [[1, alone], [10_000, 1]] as const) {
    const device = await openDevice("cpu", { cpuMath: "native", memoryBytes, ranksOnHost });
    assert.match(device.detail, new RegExp(`, ${threads} threads? \\(`));
    device.dispose();
  }
});

test("a helper that cannot open its library is an error, not a wait", { skip }, async () => {
  const posix = await openPosix();
  const library = await openNativeLibrary(posix);
  await assert.rejects(openThreads(posix, { ...library, path: "/none/native.so" }, 2), (error) => {
    assert.ok(error instanceof UnsupportedError);
    assert.match(error.message, /^Cannot start 2 threads: .*none.*\. With threads 1, a rank has its own only$/s);
    return true;
  });
});

test(
  "a permission that a helper lacks is an error that names it",
  { skip: skip || programOf("deno") === undefined },
  () => {
    const root = fileURLToPath(new URL("../..", import.meta.url));
    const script = `const { openDevice } = await import(${JSON.stringify(`${root}doors/device.ts`)});
      await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 24, threads: 2 }).catch(console.log);`;
    const read = `--allow-read=${root}wasm/pkg,/proc`;
    const args = ["run", "--no-prompt", "--allow-ffi", "--allow-env", read, "--ext=ts", "-"];
    const said = execFileSync(programOf("deno") ?? "deno", args, { cwd: root, input: script, encoding: "utf8" });
    assert.match(said, /^UnsupportedError: Cannot start 2 threads: /);
    assert.match(said, /--allow-read/);
  },
);
