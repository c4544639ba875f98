/**
 * The host and the runtime of this process.
 *
 * @module
 */
import assert from "node:assert/strict";
import process from "node:process";
import { describe, it } from "node:test";
import { run } from "../../src/cli/run.ts";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { UnsupportedError } from "../../src/errors.ts";
import * as processes from "../../src/runtime/processes.ts";
import { openCommDevice } from "../support/comm_device.ts";

describe("requirePlatform()", () => {
  it("accepts the platforms of the table", () => {
    for (const { os, arch } of processes.PLATFORMS) processes.requirePlatform({ os, arch });
    assert.equal(processes.platformVerdict({ os: "linux", arch: "x64" }).support, "full");
    assert.equal(processes.platformVerdict({ os: "darwin", arch: "arm64" }).support, "partial");
  });

  it("refuses others with the table, and sends Windows to WSL", () => {
    assert.throws(() => processes.requirePlatform({ os: "freebsd", arch: "x64" }), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.match(
        error.message,
        /^Cannot run on freebsd x64: not supported\. Supported platforms:\n {2}linux x64: full/,
      );
      assert.match(error.message, /darwin arm64: partial .*\n {2}Windows: through WSL 2$/);
      return true;
    });
    assert.throws(() => processes.requirePlatform({ os: "win32", arch: "x64" }), /run it inside WSL 2/);
    assert.throws(() => processes.requirePlatform({ os: "darwin", arch: "x64" }), UnsupportedError);
  });
});

describe("requireSharedMemory()", () => {
  it("refuses what is not Linux, and says how several ranks run there", () => {
    processes.requireSharedMemory({ os: "linux", arch: "arm64" });
    assert.throws(
      () => processes.requireSharedMemory({ os: "darwin", arch: "arm64" }),
      /^UnsupportedError: Cannot share memory between processes on darwin arm64.*'runLoopback'$/,
    );
    assert.throws(() => processes.requireSharedMemory({ os: "win32", arch: "x64" }), /WSL 2, which is Linux/);
  });

  for (
    const [os, ranks, pattern] of [
      ["darwin", 2, /on darwin .*, only on Linux.*'runLoopback'/],
      ["win32", 1, /Supported platforms:\n {2}linux x64/],
    ] as const
  ) {
    it(`is asked on ${os} before ${ranks} ranks are started, and before they join`, async () => {
      const device = await openCommDevice(2 ** 24);
      const here = Object.getOwnPropertyDescriptor(process, "platform");
      Object.defineProperty(process, "platform", { value: os, configurable: true });
      const arch = Object.getOwnPropertyDescriptor(process, "arch");
      Object.defineProperty(process, "arch", { value: os === "darwin" ? "arm64" : "x64", configurable: true });
      try {
        await assert.rejects(run(["--nproc-per-node", String(ranks), "train.ts"]), pattern);
        await assert.rejects(openProcessGroup({ device, rank: 0, worldSize: 2 }), pattern);
      } finally {
        if (here !== undefined) Object.defineProperty(process, "platform", here);
        if (arch !== undefined) Object.defineProperty(process, "arch", arch);
      }
    });
  }
});

it("claims no library that nothing uses", () => {
  for (const { detail } of processes.PLATFORMS) assert.doesNotMatch(detail, /CUDA|Accelerate/);
});

it("runtime() names the runtime and its version", () => {
  const { name, version } = processes.runtime();
  assert.equal(name, Reflect.has(globalThis, "Bun") ? "bun" : "deno");
  assert.match(version, /^\d+\.\d+\.\d+/);
  assert.ok(processes.coreCount() >= 1);
  assert.ok(processes.executablePath().startsWith("/"));
  assert.ok(processes.workingDirectory().startsWith("/"));
});
