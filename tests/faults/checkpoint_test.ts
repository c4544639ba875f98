/** Checkpoints that are half written, and disks that are full or not there, as a user meets them. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, rmSync, truncateSync } from "node:fs";
import process from "node:process";
import { longTest, sharedTest as test, usualFirst } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { essence, flagsIn, metricLines, run, startAlone, startRun } from "../train/runs.ts";

const TIMEOUT = { timeout: 60_000 };

/** Names in a run's folder that look like checkpoints. */
function checkpointsIn(folder: TemporaryDirectory): string[] {
  return readdirSync(folder.file("out")).filter((name) => name.startsWith("checkpoint")).sort();
}

test("a half-written checkpoint is named with the last whole one, and 'auto' takes that", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "6", "--save-every", "2");
  const saved = await run(flags);
  assert.equal(saved.code, 0, saved.stderr);
  const whole = metricLines(folder).map(essence);
  rmSync(folder.file("out/checkpoint-6/manifest.json"));
  const shard = readdirSync(folder.file("out/checkpoint-4")).find((name) => name.startsWith("shard-")) ?? "";
  truncateSync(folder.file(`out/checkpoint-4/${shard}`), 1000);

  const named = await run([...flags, "--resume", folder.file("out/checkpoint-6")]);
  assert.equal(named.code, 1, named.stderr);
  assert.match(
    named.stderr,
    /CheckpointError: .*checkpoint-6: manifest\.json is missing.*the last whole checkpoint is '.*checkpoint-2': resume from that/,
  );
  const auto = await run([...flags, "--resume", "auto"]);
  assert.equal(auto.code, 0, auto.stderr);
  assert.match(auto.stderr, /Skipped an incomplete checkpoint: .*checkpoint-6: manifest\.json is missing/);
  assert.match(auto.stderr, new RegExp(`Skipped .*checkpoint-4: ${shard} should have \\d+ bytes, got 1000`));
  assert.match(auto.stderr, /Resumed '.*checkpoint-2' at step 2/);
  assert.deepEqual(metricLines(folder).map(essence), whole);
});

longTest(
  "a rank whose disk is full while it saves leaves the checkpoint before as it was",
  TIMEOUT,
  async (context) => {
    if (process.platform !== "linux") return context.skip("needs a shell with ulimit -f and an ignored SIGXFSZ");
    using folder = temporaryDirectory();
    assert.equal((await run(flagsIn(folder, "--steps", "4", "--stop-after", "1"))).code, 0);
    // Half of a shard may be written: 512-byte blocks. A launcher could give the signal its meaning back.
    const shell = "trap '' XFSZ; ulimit -f 300";
    const flags = flagsIn(folder, "--steps", "4", "--save-every", "2", "--resume", "auto");
    const { code, stderr } = await startAlone(flags, { shell }).ended;
    assert.equal(code, 1, stderr);
    assert.match(stderr, /FileError: Cannot write '.*checkpoint-2\.partial\/.*\.safetensors': .*\(EFBIG\)/);
    assert.deepEqual(checkpointsIn(folder), ["checkpoint-1"]);
    const resumed = await run(flags);
    assert.equal(resumed.code, 0, resumed.stderr);
    assert.match(resumed.stderr, /Resumed '.*checkpoint-1' at step 1/);
  },
);

for (const aside of usualFirst([["--async-save"], []], (place) => place === 0)) {
  const what = ["a full disk", ...aside].join(" with ");
  test(`${what} is told with the file and the bytes, and keeps the checkpoint before`, TIMEOUT, async (context) => {
    using folder = temporaryDirectory();
    const disk = folder.file("disk");
    mkdirSync(disk);
    // A checkpoint of 135,760 parameters has 1.6 MB: one fits, a second does not.
    const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", "size=3m", "none", disk]);
    if (mounted.status !== 0) return context.skip("needs the right to mount a file system");
    try {
      const flags = flagsIn(folder, "--steps", "4", "--out", `${disk}/out`, "--save-every", "2", ...aside);
      const { code, stderr } = await run(flags);
      assert.equal(code, 1, stderr);
      assert.match(stderr, /Saved '.*checkpoint-2'/);
      assert.match(
        stderr,
        /fullyshard: ranks? [^:]*: FileError: Cannot write '.*checkpoint-4\.partial\/.*\.safetensors': no space is left .*; \d+ bytes were to be written, \d+ bytes are free/,
      );
      // Either rank may be the first to find no room; the other finds none either, or is told.
      assert.match(
        stderr,
        /fullyshard: ranks? (\d ended because of it|\d.* failed after it: (FileError|CheckpointError): |0, 1 failed: )/,
      );
      assert.deepEqual(readdirSync(`${disk}/out`).sort(), [
        "checkpoint-2",
        "events.jsonl",
        "metrics.jsonl",
        "run.json",
      ]);
      const resumed = await run([...flags, "--resume", "auto", "--out", folder.file("out"), "--save-every", "100"]);
      assert.equal(resumed.code, 0, resumed.stderr);
    } finally {
      spawnSync("umount", [disk]);
    }
  });
}

test("a rank killed while Workers save leaves the checkpoint before, from which a run goes on", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "6", "--save-every", "2", "--async-save", "hidden=64");
  const { code, stderr } = await startRun([...flags, "fault=1:4:kill-in=gather"], { allowAll: true }).ended;
  assert.equal(code, 137, stderr);
  assert.match(stderr, /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/);
  assert.doesNotMatch(stderr, /Saved '.*checkpoint-4'/);
  assert.deepEqual(checkpointsIn(folder).filter((name) => !name.endsWith(".partial")), ["checkpoint-2"]);
  const resumed = await run([...flags, "--resume", "auto"]);
  assert.equal(resumed.code, 0, resumed.stderr);
  assert.match(resumed.stderr, /Resumed '.*checkpoint-2' at step 2/);
  assert.deepEqual(checkpointsIn(folder), ["checkpoint-2", "checkpoint-4", "checkpoint-6"]);
});

test("an output folder that cannot be made is named before anything is done", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const below = `${folder.write("file", "")}/below`;
  const { code, stdout, stderr } = await run(flagsIn(folder, "--out", below));
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    /fullyshard: ranks? 0[^:]*: FileError: Cannot make directory '.*file\/below': a part of the path is a file/,
  );
  assert.doesNotMatch(stdout, /step/);
});

test("a cache folder that cannot be made is named", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const below = `${folder.write("file", "")}/below`;
  const { code, stderr } = await run([...flagsIn(folder), "--cache", below]);
  assert.equal(code, 1, stderr);
  assert.match(stderr, /fullyshard: ranks? 0[^:]*: .*FileError: Cannot \w+( directory)? '.*file\/below/);
});
