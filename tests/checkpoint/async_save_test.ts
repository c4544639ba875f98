/** Saves that go on beside the ranks: the same bytes, whatever the ranks do meanwhile, and failures that all hear of. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { asyncSave } from "../../src/checkpoint/sharded/async_save.ts";
import { saveCheckpoint } from "../../src/checkpoint/sharded/save.ts";
import { CheckpointStager } from "../../src/checkpoint/sharded/stager.ts";
import { PAST_CACHES_BYTES } from "../../src/device/device.ts";
import { openModel } from "../../src/train/open_model.ts";
import { launch } from "../../src/train/run.ts";
import { limitedEnvironment } from "../support/file_limit.ts";
import { programOf, RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as test, usualFirst } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { type Task, TINY_LLAMA } from "./bed.ts";
import { runRanks } from "./run_ranks.ts";

/** Names and bytes of all that lies in a checkpoint. */
function contents(path: string): Record<string, string> {
  return Object.fromEntries(
    fs.readdirSync(path).sort().map((name) => [name, fs.readFileSync(`${path}/${name}`, "hex")]),
  );
}

function tasksIn(folder: TemporaryDirectory, world: number, more: Partial<Task> = {}): [Task, Task] {
  const common = { world, seed: 3, step: 4, ...more };
  return [
    { ...common, do: "save", directory: folder.file("blocking") },
    { ...common, do: "async-save", directory: folder.file("aside") },
  ];
}

for (
  const [what, world, more] of usualFirst(
    [
      ["1 rank", 1, {}],
      ["2 ranks", 2, {}],
      ["3 ranks that hold copies", 3, { whole: true }],
      ["2 ranks that call on and await it late", 2, { then: "call on" }],
    ] as const,
    (place) => place > 1,
  )
) {
  test(`asyncSave() writes the bytes of saveCheckpoint(), whatever becomes of the model: ${what}`, async () => {
    using folder = temporaryDirectory();
    const tasks = tasksIn(folder, world, more);
    const load: Task = { do: "load", world, seed: 3, directory: folder.file("aside"), whole: world === 3 };
    const [blocking = [], aside = [], loaded = []] = await runRanks([...tasks, load]);
    for (const { error, wrong } of [...blocking, ...aside, ...loaded]) assert.deepEqual([error, wrong], ["", 0]);
    assert.deepEqual(contents(folder.file("aside/checkpoint-4")), contents(folder.file("blocking/checkpoint-4")));
    assert.deepEqual(fs.readdirSync(folder.file("aside")), ["checkpoint-4"]);
    for (const { value } of aside) {
      assert.equal(value["byteLength"], blocking[0]?.value["byteLength"]);
      assert.equal(value["done"], true);
      assert.match(String(value["again"]), /ArgumentError: Cannot save checkpoint 5: .* await what asyncSave\(\) gave/);
      const there =
        /ArgumentError: Cannot save checkpoint 5 in '.*': asyncSave\(\) has begun there to save checkpoint 4; await/;
      assert.match(String(value["beside"]), there);
      assert.match(String(value["blocking"]), there);
    }
  });
}

test("asyncSave() writes the bytes of saveCheckpoint() where its copy goes past caches", async () => {
  using folder = temporaryDirectory();
  await using run = await launch({ cpuMath: "auto", memoryBytes: 2 ** 27 });
  const { group, device } = run;
  const model = await openModel(run, { ...TINY_LLAMA, vocab_size: 270_001 });
  await model.load();
  using stager = new CheckpointStager(device);
  const common = { step: 1, model, group, state: {} };
  await saveCheckpoint({ ...common, directory: folder.file("blocking") });
  await asyncSave({ ...common, directory: folder.file("aside"), stager });
  assert.ok(stager.byteLength >= PAST_CACHES_BYTES);
  assert.deepEqual(contents(folder.file("aside/checkpoint-1")), contents(folder.file("blocking/checkpoint-1")));
});

test("CheckpointStager gives all its memory back", async () => {
  await using run = await launch({ memoryBytes: 2 ** 26 });
  const model = await openModel(run, TINY_LLAMA);
  await model.load();
  const { allocator } = run.device;
  const before = allocator.stats.inUse;
  const stager = new CheckpointStager(run.device);
  stager.reserve(model);
  assert.ok(stager.byteLength > 0 && allocator.stats.inUse - before >= stager.byteLength);
  stager[Symbol.dispose]();
  assert.deepEqual([stager.byteLength, allocator.stats.inUse], [0, before]);
});

longTest("asyncSave() keeps the last checkpoints, and replaces one of the same step", async () => {
  using folder = temporaryDirectory();
  const task: Task = { do: "async-save", world: 2, seed: 3, directory: folder.file("out"), keepLast: 2 };
  const saves = [1, 2, 3, 3].map((step, seed) => ({ ...task, step, seed }));
  const outcomes = await runRanks([...saves, { ...task, do: "load", seed: 3 }]);
  for (const { error, wrong } of outcomes.flat()) assert.deepEqual([error, wrong], ["", 0]);
  assert.deepEqual(fs.readdirSync(folder.file("out")).sort(), ["checkpoint-2", "checkpoint-3"]);
});

longTest("asyncSave() that is given up leaves what was there, and its memory for another", async () => {
  using folder = temporaryDirectory();
  const [, task] = tasksIn(folder, 2);
  const outcomes = await runRanks([task, { ...task, seed: 5, then: "give up" }, { ...task, step: 6 }, {
    ...task,
    do: "load",
    seed: 3,
  }]);
  for (const { error, wrong } of outcomes.flat()) assert.deepEqual([error, wrong], ["", 0]);
  assert.deepEqual(fs.readdirSync(folder.file("aside")).sort(), ["checkpoint-4", "checkpoint-6"]);
});

longTest(
  "asyncSave() and saveCheckpoint() take the step and directory of a save that was given up just before",
  async () => {
    using folder = temporaryDirectory();
    const [blocking, aside] = tasksIn(folder, 3);
    for (const task of [{ ...aside, seed: 7 }, { ...blocking, seed: 7, directory: aside.directory }]) {
      const givenUp: Task = { ...aside, seed: 5, then: "give up" };
      const outcomes = await runRanks([givenUp, givenUp, task, { ...task, do: "load" }]);
      for (const { error, wrong } of outcomes.flat()) assert.deepEqual([error, wrong], ["", 0]);
      assert.deepEqual(fs.readdirSync(aside.directory), ["checkpoint-4"]);
    }
  },
);

/** Runs a script of this folder in a process whose files have at most `blocks` blocks. */
function runLimited(name: string, blocks: string, args: readonly string[]) {
  const script = fileURLToPath(new URL(name, import.meta.url));
  const shell = `trap '' XFSZ; ulimit -f ${blocks}; exec "$0" "$@"`;
  const runtime = RUNTIME === "deno" ? ["run", "-A", "--no-check"] : [];
  const command = [programOf(RUNTIME) ?? RUNTIME, ...runtime, script, ...args];
  return spawnSync("/bin/sh", ["-c", shell, ...command], {
    encoding: "utf8",
    timeout: 30_000,
    env: limitedEnvironment(),
  });
}

test("asyncSave() that fails unheard, as no collective follows, ends the program with its error", (context) => {
  if (process.platform !== "linux") return context.skip("needs a shell with ulimit -f and an ignored SIGXFSZ");
  using folder = temporaryDirectory();
  const saved = runLimited("./save_unawaited.ts", "unlimited", [folder.file("out")]);
  assert.deepEqual([saved.stdout, saved.stderr, saved.status], ["", "", 0]);
  const { status, stderr } = runLimited("./save_unawaited.ts", "20", [folder.file("full")]);
  assert.match(stderr, /FileError: Cannot write '.*checkpoint-1\.partial\/.*safetensors': .*\(EFBIG\)/);
  assert.equal(status, 1);
  assert.deepEqual([fs.readdirSync(folder.file("out")), fs.readdirSync(folder.file("full"))], [["checkpoint-1"], []]);
});

for (const then of ["await", "call on"] as const) {
  test(`asyncSave() without room on the disk: ranks that ${then} hear of it by name`, (context) => {
    if (process.platform !== "linux") return context.skip("needs a shell with ulimit -f and an ignored SIGXFSZ");
    using folder = temporaryDirectory();
    const save = (step: number, blocks: string) =>
      runLimited("./save_limited.ts", blocks, [folder.file("out"), `${step}`, then]);
    assert.equal(save(1, "unlimited").stdout, "saved\nsaved\n");
    const before = contents(folder.file("out/checkpoint-1"));
    const { stdout, status, stderr } = save(2, "20");
    assert.equal(status, 0, stderr);
    assert.match(stdout, /FileError: Cannot write '.*checkpoint-2\.partial\/.*safetensors': .*\(EFBIG\)/);
    for (const line of stdout.trim().split("\n")) assert.match(line, /^(FileError|CheckpointError|CollectiveError): /);
    assert.deepEqual(contents(folder.file("out/checkpoint-1")), before);
    assert.equal(fs.existsSync(folder.file("out/checkpoint-2")), false);
  });
}

test("asyncSave() that cannot copy on one rank is refused on all, and leaves what was there", async () => {
  using folder = temporaryDirectory();
  const [, task] = tasksIn(folder, 3);
  const [, failed = []] = await runRanks([task, { ...task, step: 6, broken: 1 }]);
  assert.match(failed[1]?.error ?? "", /^Error: this memory cannot be reached/);
  for (const rank of [0, 2]) {
    assert.match(failed[rank]?.error ?? "", /^CollectiveError: .*rank 1 failed: Error: this mem/);
  }
  assert.deepEqual(fs.readdirSync(folder.file("aside")), ["checkpoint-4"]);
});
