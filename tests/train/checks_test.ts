/** Settings that are refused before a run begins. @module */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { ArgumentError, ConfigError, FileError } from "../../src/errors.ts";
import { mostThreads } from "../../src/runtime/processes.ts";
import { requireCache, requireThreads, requireTracker } from "../../src/train/checks.ts";

test("requireThreads() refuses more threads than the cores can keep busy", async () => {
  const most = mostThreads();
  for (const threads of [undefined, 1, most]) requireThreads({ threads });
  assert.throws(() => requireThreads({ threads: most + 1 }), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.match(error.message, new RegExp(`--threads: expected at most ${most} on \\d+ cores?; .* got ${most + 1}`));
    return true;
  });
  if (most >= 1024) return;
  const open = openDevice("cpu", { cpuMath: "native", threads: most + 1 });
  await assert.rejects(
    open,
    (error) => error instanceof ArgumentError && /Cannot run \d+ threads on/.test(error.message),
  );
});

test("requireTracker() refuses a name for trackers where there are none", () => {
  requireTracker({ reportTo: [] });
  requireTracker({ reportTo: ["tensorboard"], runName: "a" });
  assert.throws(() => requireTracker({ reportTo: [], runName: "a" }), {
    name: "ConfigError",
    message: /runName: expected reportTo to be set too, got 'a' without it; set reportTo, or remove runName/,
  });
});

test("requireCache() names --cache where tokenized text cannot be kept", () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-test-`);
  try {
    requireCache({ cache: `${folder}/a/b` });
    writeFileSync(`${folder}/file`, "");
    assert.throws(() => requireCache({ cache: `${folder}/file/cache` }), (error) => {
      assert.ok(error instanceof FileError);
      assert.match(error.message, /^Cannot make directory '.*file\/cache': .*name another folder with '--cache'$/);
      return true;
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});
