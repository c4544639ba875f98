/**
 * What this process runs on, and what is done when it ends.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { UnsupportedError } from "../../src/errors.ts";
import * as processes from "../../src/runtime/processes.ts";

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

it("runtime() names the runtime and its version", () => {
  const { name, version } = processes.runtime();
  assert.equal(name, Reflect.has(globalThis, "Bun") ? "bun" : "deno");
  assert.match(version, /^\d+\.\d+\.\d+/);
  assert.ok(processes.coreCount() >= 1);
  assert.ok(processes.executablePath().startsWith("/"));
  assert.ok(processes.workingDirectory().startsWith("/"));
});

describe("onExit()", () => {
  const script = fileURLToPath(new URL("./scripts/exit_hook.ts", import.meta.url));
  const start = processes.runtime().name === "deno" ? ["run", "-A", "--no-check"] : ["run"];
  const run = (how: string): { output: string; status: number | null; signal: string | null } => {
    const child = spawnSync(processes.executablePath(), [...start, script, how], { encoding: "utf8" });
    return { output: child.stdout, status: child.status, signal: child.signal };
  };

  it("runs at the end of the program", () => {
    assert.deepEqual(run("end"), { output: "started cleaned", status: 0, signal: null });
  });

  it("runs when the program throws", () => {
    const { output, status } = run("throw");
    assert.equal(output, "started cleaned");
    assert.equal(status, 1);
  });

  it("runs once at SIGTERM, of which the process then dies", () => {
    assert.deepEqual(run("SIGTERM"), { output: "started cleaned", status: null, signal: "SIGTERM" });
  });

  it("does not run after it was taken off", () => {
    assert.deepEqual(run("removed"), { output: "started ", status: 0, signal: null });
  });
});
