/** The actions that `onStep` may ask for. @module */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runCli } from "../launch/launcher.ts";

import { temporaryDirectory } from "../support/temporary.ts";

test("onStep stops all ranks with a checkpoint where it gives 'stop' on one", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("data.txt", "the quick brown fox jumps over the lazy dog. ".repeat(200));
  const script = fileURLToPath(new URL("scripts/early.ts", import.meta.url));
  const flags = ["--steps", "9", "--sequence-length", "32", "--sample-tokens", "0", "--cache", folder.file("cache")];
  const out = folder.file("out");
  const { code, stderr } = await runCli([
    ...["run", "--nproc-per-node", "2", script, "--data", data, "--out", out],
    ...flags,
  ]);
  assert.equal(code, 0, stderr);
  assert.match(stderr, /Stopped after step 3 of 9, as a callback asked for/);
  assert.ok(existsSync(`${out}/checkpoint-3/`) && !existsSync(`${out}/model`));
});
