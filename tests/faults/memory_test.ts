/** Memory that is too small, and shared memory that others left, as a user meets them. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync } from "node:fs";
import process from "node:process";
import { longTest, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, run, startAlone, startRanks, startRun } from "../train/runs.ts";

const TIMEOUT = { timeout: 60_000 };

test(
  "a model that is too large for its ranks is refused at once, with what is most and what would do",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const { code, stdout, stderr } = await run([...flagsIn(folder), "layers=12", "hidden=2560"]);
    assert.equal(code, 1, stderr);
    assert.match(
      stderr,
      /fullyshard: ranks 0, 1 failed: OutOfMemoryError: Out of memory on cpu:0: asked for [\d.]+ GiB with 0 bytes of [\d.]+ [MG]iB in use\. The model of \d+ parameters does not fit 2 ranks: a rank needs [\d.]+ GiB at once \(optimizer [\d.]+ [MG]iB, .*\); 4 ranks would be enough/,
    );
    assert.doesNotMatch(stdout + stderr, /step|Tokeni[sz]ing/);
  },
);

test("a model that does not fit --memory-bytes is told how many ranks would do", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--memory-bytes", String(128 * 2 ** 20), "--global-batch", "1");
  const { code, stderr } = await run([...flags, "layers=16", "hidden=256"], { ranks: 1 });
  assert.equal(code, 1, stderr);
  assert.match(stderr, /The model of \d+ parameters does not fit 1 rank.*; \d+ ranks would be enough/);
});

longTest("a batch that does not fit is told once, with the parts that would, and these do", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--memory-bytes", String(2 ** 24), "--global-batch", "1024", "--steps", "1");
  const { code, stdout, stderr } = await run(flags);
  assert.equal(code, 1, stderr);
  const advice = /; '--micro-batches (\d+)', (\d+) samples? at once, needs [\d.]+ MiB$/m.exec(stderr);
  assert.ok(advice !== null, stderr);
  assert.equal(stderr.split("--micro-batches").length, 2, stderr);
  assert.match(stderr, /^fullyshard: ranks 0, 1 failed: OutOfMemoryError: .*no number of ranks is enough/m);
  assert.doesNotMatch(stderr, /\d{5} (?!parameters)/, "bytes are told in MiB");
  const [, parts = "", samples] = advice;
  assert.equal(Number(parts) * Number(samples), 512);
  assert.doesNotMatch(stdout, /step/);
  const followed = await run([...flags, "--micro-batches", parts]);
  assert.equal(followed.code, 0, followed.stderr);
});

test("memory that runs out names bytes asked, in use and the largest owners", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run([...flagsIn(folder, "--steps", "9"), "fault=1:3:allocate"]);
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    /fullyshard: rank 1 \(pid \d+\) failed first: OutOfMemoryError: Out of memory on cpu:0: asked for 1024\.00 GiB with [\d.]+ [KMG]iB of [\d.]+ [MG]iB in use\. Largest owners: .*optimizer exp_avg: [\d.]+ [KM]iB.*\. Use fewer samples per micro-batch \(raise \'--micro-batches\'\), a shorter sequence, or more ranks/,
  );
  assert.match(stderr, /fullyshard: rank 0 ended because of it/);
});

const tooSmall =
  /fullyshard: rank 0 \(pid \d+\) failed first: OutOfMemoryError: Out of memory on (\S+): asked for ([\d.]+) ([KMG]iB) with [\d.]+ (?:bytes|[KMG]iB) of [\d.]+ [KMG]iB in use\..* [\d.]+ (?:bytes|[KMG]iB) are free\..*'--shm-size'/;

test("too little shared memory is told with bytes asked, free and the container's flag", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, "--staging-bytes", String(2 ** 46)));
  assert.equal(code, 1, stderr);
  assert.match(stderr, tooSmall);
  const [, , asked, unit] = tooSmall.exec(stderr) ?? [];
  assert.ok(Number(asked) >= 2 ** 16 && unit === "GiB", stderr);
  assert.match(stderr, /fullyshard: rank 1 ended because of it/);
});

test("a directory for shared memory that is too small for the model's shards is told too", TIMEOUT, async (context) => {
  using folder = temporaryDirectory();
  const directory = folder.file("shm");
  mkdirSync(directory);
  const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", "size=1m", "none", directory]);
  if (mounted.status !== 0) return context.skip("needs the right to mount a file system");
  try {
    const env = { FULLYSHARD_SHM_DIRECTORY: directory };
    const flags = flagsIn(folder, "--staging-bytes", "65536");
    const { code, stderr } = await run([...flags, "hidden=64"], { env });
    assert.equal(code, 1, stderr);
    const found = /fullyshard: ranks? [^:]*: OutOfMemoryError: Out of memory on (\S+): .*'--shm-size'/.exec(stderr);
    assert.equal(found?.[1], directory, stderr);
    assert.deepEqual(readdirSync(directory), [], "something was left");
  } finally {
    spawnSync("umount", [directory]);
  }
});

/** Names in a run's shared-memory directory. */
function namesIn(folder: TemporaryDirectory): string[] {
  return readdirSync(folder.file("shm")).sort();
}

longTest("what killed ranks left is removed by the next run, and what a live run has is not", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  mkdirSync(folder.file("shm"));
  const env = { FULLYSHARD_SHM_DIRECTORY: folder.file("shm") };
  const endless = (out: string): string[] => flagsIn(folder, "--steps", "1000000", "--out", folder.file(out));
  const killed = startRanks(2, () => endless("killed"), { env });
  const alive = startRun(endless("alive"), { env });
  await Promise.all([killed[0]?.until(/step 2\//), alive.until(/step 2\//)]);
  const both = namesIn(folder);
  for (const { child } of killed) child.kill("SIGKILL");
  await Promise.all(killed.map((rank) => rank.ended));
  const left = namesIn(folder);
  assert.ok(left.length > 0, "killed ranks left nothing, so there is nothing to test");
  assert.deepEqual(left, both);

  const next = await run(flagsIn(folder, "--steps", "2"), { env });
  assert.equal(next.code, 0, next.stderr);
  const after = namesIn(folder);
  assert.ok(after.length > 0 && after.length < left.length, `was ${left}, is ${after}`);
  const seen = alive.output().length;
  await alive.until(new RegExp(`^[^]{${seen},}step \\d+/`));
  assert.ok(after.every((name) => left.includes(name)));
  process.kill(alive.child.pid ?? 0, "SIGTERM");
  assert.equal((await alive.ended).code, 143);
  // Nothing but what a killed run leaves stays, and that the next one removes.
  const last = await run(flagsIn(folder, "--steps", "1", "--out", folder.file("last")), { env });
  assert.equal(last.code, 0, last.stderr);
  assert.deepEqual(namesIn(folder), []);
});

test("a run that ends well or fails leaves no shared memory", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  mkdirSync(folder.file("shm"));
  const env = { FULLYSHARD_SHM_DIRECTORY: folder.file("shm") };
  assert.equal((await run(flagsIn(folder, "--steps", "2"), { env })).code, 0);
  assert.deepEqual(namesIn(folder), []);
  const failed = await run([...flagsIn(folder, "--steps", "4", "--overwrite"), "fault=1:2:throw"], { env });
  assert.equal(failed.code, 1, failed.stderr);
  assert.deepEqual(namesIn(folder), []);
  const absent = { ...env, RANK: "0", WORLD_SIZE: "2" };
  await startAlone(flagsIn(folder, "--join-timeout-seconds", "0.5"), { env: absent }).ended;
  assert.deepEqual(namesIn(folder), []);
});
