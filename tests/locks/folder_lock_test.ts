/** Folders that one run writes in at a time: who is refused, and what a holder that was killed leaves. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { asyncSave, CheckpointStager, saveCheckpoint, saveHfDirectory } from "../../doors/checkpoint.ts";
import { FileError } from "../../doors/errors.ts";
import { launch, openModel } from "../../mod.ts";
import { ALONE } from "../../src/checkpoint/format/ranks.ts";
import { mergeCheckpoint } from "../../src/checkpoint/offline/merge.ts";
import { reshardCheckpoint } from "../../src/checkpoint/offline/reshard.ts";
import { findCheckpoint } from "../../src/checkpoint/sharded/find.ts";
import { LOCK_FILE, lockFolder } from "../../src/locks/folder_lock.ts";
import { programOf, type RankProcess, startRank } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const SCRIPT = new URL("../comm/hold_folder.ts", import.meta.url);

/** A process that has a folder, once it has it. */
async function holder(args: readonly string[], runtime?: "bun" | "deno"): Promise<RankProcess> {
  const rank = startRank(SCRIPT, args, runtime === undefined ? {} : { runtime });
  for (const until = Date.now() + 30_000; !rank.stdout.includes("\n") && Date.now() < until;) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.equal(rank.stdout, "held\n", rank.stderr);
  return rank;
}

async function kill(rank: RankProcess): Promise<void> {
  rank.child.kill("SIGKILL");
  await rank.ended;
}

function isBusy(folder: string, pid: number | undefined, more: RegExp = /./): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof FileError, String(error));
    assert.equal(error.code, "EBUSY");
    assert.ok(error.message.startsWith(`Cannot write in '${folder}': process ${pid} on host '`), error.message);
    assert.match(error.message, /' \(since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\) is writing there; /);
    assert.match(error.message, more);
    return true;
  };
}

for (const kind of ["kernel", "file"] as const) {
  for (const runtime of ["bun", "deno"] as const) {
    test(`lockFolder() by ${kind} refuses a folder that a process of ${runtime} has, until that is killed`, async (context) => {
      if (programOf(runtime) === undefined) return context.skip(`${runtime} is not installed`);
      using folder = temporaryDirectory();
      const out = folder.file("runs/a");
      const options = { kernel: kind === "kernel", remedy: "give each run its own" };
      const other = await holder([out, kind], runtime);
      try {
        const text = fs.readFileSync(`${out}/${LOCK_FILE}`, "utf8");
        await assert.rejects(lockFolder(out, options), isBusy(out, other.child.pid, /; give each run its own$/));
        // A folder that was taken by the kernel's lock is taken for those who have none, and the other way round.
        await assert.rejects(lockFolder(out, { kernel: kind !== "kernel" }), isBusy(out, other.child.pid));
        assert.equal(fs.readFileSync(`${out}/${LOCK_FILE}`, "utf8"), text, "what refuses changes nothing");
        assert.deepEqual(fs.readdirSync(out), [LOCK_FILE]);
      } finally {
        await kill(other);
      }
      using lock = await lockFolder(out, options);
      assert.equal(lock.folder, out);
      assert.deepEqual(fs.readdirSync(out), [LOCK_FILE]);
    });
  }
}

for (const runtime of ["bun", "deno"] as const) {
  test(`lockFolder() under ${runtime} refuses a folder whose lock file is another user's and may only be read`, async (context) => {
    const program = programOf(runtime);
    if (program === undefined) return context.skip(`${runtime} is not installed`);
    using folder = temporaryDirectory();
    const out = folder.file("a");
    const lock = await lockFolder(out);
    const args = [...runtime === "deno" ? ["run", "-A", "--no-check"] : [], fileURLToPath(SCRIPT), out];
    // Root may write what others may only read, so another user tries in its place.
    const isRoot = process.getuid?.() === 0;
    const command = isRoot ? ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] : ["env"];
    const env = { PATH: "/usr/bin:/bin", HOME: folder.path, DENO_DIR: folder.file("deno") };
    const run = (...args: readonly string[]) => {
      const [name = "", ...lead] = command;
      return spawnSync(name, [...lead, ...args], { encoding: "utf8", input: "end\n", env });
    };
    const look = run("sh", "-c", 'test -x "$0" -a -r "$1"', program, fileURLToPath(SCRIPT));
    if (look.status !== 0) return context.skip("needs setpriv, and another user who may read this folder");
    const held = (): string => run(program, ...args).stdout;
    for (const path of [folder.path, out]) fs.chmodSync(path, 0o777);
    fs.chmodSync(`${out}/${LOCK_FILE}`, 0o444);
    assert.match(
      held(),
      new RegExp(`^refused: Cannot write in '${out}': process ${process.pid} on host '.* is writing there`),
    );
    const left = fs.readFileSync(`${out}/${LOCK_FILE}`);
    lock[Symbol.dispose]();
    fs.writeFileSync(`${out}/${LOCK_FILE}`, left, { mode: 0o444 });
    assert.equal(held(), "held\n", "what a holder of another user left blocks nobody");
  });
}

test("lockFolder() leaves nothing when it is given up, and may be called again by its holder", async () => {
  using folder = temporaryDirectory();
  const out = folder.file("a/b");
  {
    using first = await lockFolder(out, { removesEmpty: true });
    {
      using again = await lockFolder(`${out}/.`);
      assert.equal(again.folder, `${out}/.`.slice(0, again.folder.length));
    }
    const other = startRank(SCRIPT, [out]);
    await other.ended;
    assert.match(other.stdout, /^refused: .*since .* is writing there/, first.folder);
  }
  assert.ok(!fs.existsSync(folder.file("a")), "folders that it made and nothing came into");
  fs.mkdirSync(out, { recursive: true });
  fs.writeFileSync(`${out}/metrics.jsonl`, "");
  (await lockFolder(out))[Symbol.dispose]();
  assert.deepEqual(fs.readdirSync(out), ["metrics.jsonl"]);
  const next = await holder([out]);
  next.child.stdin?.end("end\n");
  assert.equal(await next.ended, 0);
  assert.deepEqual(fs.readdirSync(out), ["metrics.jsonl"]);
});

test("of processes that begin at one moment, exactly one gets the folder", async () => {
  using folder = temporaryDirectory();
  for (const kind of ["kernel", "file"]) {
    const out = folder.file(kind);
    const all = Array.from({ length: 4 }, () => startRank(SCRIPT, [out, kind]));
    for (const until = Date.now() + 60_000; all.some(({ stdout }) => stdout === "") && Date.now() < until;) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    const [won, lost] = [
      all.filter(({ stdout }) => stdout === "held\n"),
      all.filter(({ stdout }) => /^ref/.test(stdout)),
    ];
    assert.deepEqual([won.length, lost.length], [1, 3], all.map(({ stdout, stderr }) => stdout + stderr).join());
    for (const { stdout } of lost) assert.ok(stdout.includes(`process ${won[0]?.child.pid} on host '`), stdout);
    await Promise.all(won.map(kill));
  }
});

test("lockFolder() takes the file of another host for a holder while it is fresh", async () => {
  using folder = temporaryDirectory();
  const path = folder.file(LOCK_FILE);
  const holder = { pid: 7, started: "1", host: "elsewhere", boot: "other", since: "2026-01-01T00:00:00Z", id: "x" };
  const write = (lock: string, ageSeconds: number): void => {
    fs.writeFileSync(path, JSON.stringify({ ...holder, lock }));
    fs.utimesSync(path, Date.now() / 1000 - ageSeconds, Date.now() / 1000 - ageSeconds);
  };
  for (const [kernel, lock, age] of [[true, "kernel", 40], [false, "file", 500]] as const) {
    write(lock, age);
    const before = fs.statSync(path).mtimeMs;
    await assert.rejects(lockFolder(folder.path, { kernel }), (error) => {
      const help = kernel
        ? /last sign of life is 40 s old.* start again 20 s from now, or remove '/
        : /has no locks.* remove '/;
      assert.ok(error instanceof FileError && error.code === "EBUSY", String(error));
      assert.match(
        error.message,
        /: process 7 on host 'elsewhere' \(since 2026-01-01 00:00:00 UTC\) is writing there; /,
      );
      assert.match(error.message, help);
      return true;
    });
    assert.equal(fs.statSync(path).mtimeMs, before);
  }
  for (const [kernel, lock, age] of [[true, "kernel", 61], [false, "file", 601]] as const) {
    write(lock, age);
    using _lock = await lockFolder(folder.path, { kernel });
    assert.deepEqual(fs.readdirSync(folder.path), [LOCK_FILE]);
  }
  // A lock file that a full disk left without text.
  fs.writeFileSync(path, "");
  using _lock = await lockFolder(folder.path);
});

test("saves, merges and reshards are refused where another process writes, and change nothing", async () => {
  using folder = temporaryDirectory();
  await using run = await launch();
  const sizes = { vocab_size: 16, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 };
  const model = await openModel(run, { model_type: "llama", ...sizes });
  await model.load();
  using stager = new CheckpointStager(run.device);
  const { path } = await saveCheckpoint({ directory: folder.file("out"), model, group: run.group, step: 1, state: {} });
  assert.deepEqual(fs.readdirSync(folder.file("out")), ["checkpoint-1"]);
  const to = folder.file("to");
  const other = await holder([to]);
  try {
    folder.write("to/checkpoint-1.partial/shard", "of the other run");
    const before = fs.readdirSync(to, { recursive: true });
    const what = { directory: to, model, group: run.group, step: 1, state: {} };
    const busy = isBusy(to, other.child.pid);
    await assert.rejects(saveCheckpoint(what), busy);
    await assert.rejects(async () => await asyncSave({ ...what, stager }), busy);
    await assert.rejects(model.save(to), busy);
    await assert.rejects(saveHfDirectory(model, to, run.group), busy);
    await assert.rejects(mergeCheckpoint(path, to, model), busy);
    assert.equal(await findCheckpoint(to, "auto", ALONE, async () => ""), undefined);
    assert.deepEqual(fs.readdirSync(to, { recursive: true }), before);
  } finally {
    await kill(other);
  }
  // Reshard makes its target by a rename, so its lock lies beside it.
  const beside = await holder([folder.file("x")]);
  const lock = fs.readFileSync(folder.file(`x/${LOCK_FILE}`));
  fs.writeFileSync(folder.file(".cut.lock"), lock);
  using _taken = await lockFolder(folder.path, { file: folder.file(".cut.lock"), kernel: false }).catch(() =>
    undefined
  );
  assert.equal(_taken, undefined);
  await kill(beside);
  await reshardCheckpoint(path, folder.file("cut"), 2);
  assert.ok(!fs.existsSync(folder.file(".cut.lock")));
  assert.equal(await findCheckpoint(to, "auto", ALONE, async () => ""), undefined);
  assert.deepEqual(fs.readdirSync(to), [], "what the killed run left is tidied, and the lock given up");
});
