/** Names of checkpoints while they are replaced, and when that fails. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { test } from "node:test";
import { ALONE } from "../../src/checkpoint/format/ranks.ts";
import {
  beginCheckpoint,
  commitCheckpoint,
  restoreCheckpoint,
  stepOfPath,
} from "../../src/checkpoint/sharded/directory.ts";
import { findCheckpoint } from "../../src/checkpoint/sharded/find.ts";
import { FileError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

test("commitCheckpoint() replaces an earlier one, and leaves that where its successor cannot take the name", (context) => {
  using folder = temporaryDirectory();
  folder.write("checkpoint-5/which", "first");
  fs.writeFileSync(`${beginCheckpoint(folder.path, 5)}/which`, "second");
  assert.equal(commitCheckpoint(folder.path, 5), folder.file("checkpoint-5"));
  assert.deepEqual(fs.readdirSync(folder.path), ["checkpoint-5"]);
  assert.equal(fs.readFileSync(folder.file("checkpoint-5/which"), "utf8"), "second");

  // The root of a file system cannot be renamed.
  const partial = beginCheckpoint(folder.path, 5);
  if (spawnSync("mount", ["-t", "tmpfs", "-o", "size=64k", "none", partial]).status !== 0) {
    return context.skip("needs the right to mount a file system");
  }
  try {
    assert.throws(() => commitCheckpoint(folder.path, 5), FileError);
    assert.equal(fs.readFileSync(folder.file("checkpoint-5/which"), "utf8"), "second");
    assert.ok(!fs.existsSync(folder.file("checkpoint-5.replaced")));
  } finally {
    spawnSync("umount", [partial]);
  }
});

test("restoreCheckpoint() gives a name back only where it is free, and touches nothing else", () => {
  using folder = temporaryDirectory();
  folder.write("checkpoint-5.replaced/which", "five");
  folder.write("checkpoint-6/which", "new six");
  folder.write("checkpoint-6.replaced/which", "old six");
  folder.write("checkpoint-7.partial/which", "of a run that is saving");
  for (const step of [5, 6, 7]) restoreCheckpoint(`${folder.path}/checkpoint-${step}/`);
  const names = ["checkpoint-5", "checkpoint-6", "checkpoint-6.replaced", "checkpoint-7.partial"];
  assert.deepEqual(fs.readdirSync(folder.path).sort(), names);
  assert.equal(fs.readFileSync(folder.file("checkpoint-6/which"), "utf8"), "new six");
});

test("findCheckpoint() restores the one that is named before it judges it", async () => {
  using folder = temporaryDirectory();
  folder.write("checkpoint-5.replaced/which", "five");
  const named = folder.file("checkpoint-5");
  await assert.rejects(findCheckpoint(folder.path, named, ALONE, async () => ""), /manifest\.json is missing/);
  assert.ok(fs.existsSync(`${named}/which`));
});

test("stepOfPath() reads the step of a checkpoint's path", () => {
  assert.equal(stepOfPath("runs/a/checkpoint-50/"), 50);
  assert.equal(stepOfPath("checkpoint-7"), 7);
  assert.equal(stepOfPath("runs/checkpoint-7/other"), undefined);
  assert.equal(stepOfPath("runs/checkpoint-7.partial"), undefined);
});
