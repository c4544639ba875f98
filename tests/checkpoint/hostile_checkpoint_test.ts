/** Checkpoints that are damaged, do not fit, or cannot be written. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import process from "node:process";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { limitedEnvironment } from "../support/file_limit.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Task, TINY_LLAMA } from "./bed.ts";
import { runRanks } from "./run_ranks.ts";

const SHARD = "shard-00002-model-00001-of-00002.safetensors";

/** Ways to damage a checkpoint, and what is said of each. */
const DAMAGES: readonly (readonly [what: string, damage: (path: string) => void, says: RegExp])[] = [
  ["a shard that is cut off", (path) => fs.truncateSync(`${path}/${SHARD}`, 1000), /bytes, got 1000: it is cut off/],
  [
    "a flipped bit",
    (path) => flip(`${path}/optimizer-${SHARD}`),
    /optimizer-shard-00002.* checksum .*: it is damaged/,
  ],
  ["a missing shard", (path) => fs.rmSync(`${path}/${SHARD}`), new RegExp(`${SHARD} is missing`)],
  ["a configuration that is cut off", (path) => fs.truncateSync(`${path}/config.json`, 30), /config.json should have/],
  ["a changed configuration", (path) => flip(`${path}/config.json`), /config.json.* checksum .*: it is damaged/],
  ["no configuration", (path) => fs.rmSync(`${path}/config.json`), /config.json is missing/],
  ["no manifest", (path) => fs.rmSync(`${path}/manifest.json`), /manifest.json is missing: .*not written to its end/],
  ["an empty manifest", (path) => fs.writeFileSync(`${path}/manifest.json`, ""), /manifest must be JSON/],
  ["a manifest of noise", (path) => fs.writeFileSync(`${path}/manifest.json`, "\xff\x00{"), /manifest must be/],
  ["a manifest cut off", (path) => fs.truncateSync(`${path}/manifest.json`, 500), /manifest must be JSON/],
  ["a changed manifest", (path) => edit(path, (text) => text.replace('"step":2', '"step":3')), /checksum should be/],
  [
    "a later format",
    (path) => edit(path, (text) => text.replace('"formatVersion":3', '"formatVersion":9')),
    /another version/,
  ],
  ["nothing but a directory", (path) => {
    fs.rmSync(path, { recursive: true });
    fs.mkdirSync(path);
  }, /manifest.json is missing/],
];

function flip(file: string): void {
  const bytes = fs.readFileSync(file);
  bytes[bytes.length - 9] = (bytes[bytes.length - 9] ?? 0) ^ 0x10;
  fs.writeFileSync(file, bytes);
}

function edit(path: string, change: (text: string) => string): void {
  const file = `${path}/manifest.json`;
  fs.writeFileSync(file, change(fs.readFileSync(file, "utf8")));
}

/** Every file of a directory with its contents. */
function contents(directory: string): ReadonlyMap<string, string> {
  const names = fs.readdirSync(directory, { recursive: true, encoding: "utf8" }).sort();
  const files = names.filter((name) => fs.statSync(`${directory}/${name}`).isFile());
  return new Map(files.map((name) => [name, fs.readFileSync(`${directory}/${name}`, "base64")]));
}

test("loadCheckpoint() refuses a damaged checkpoint by name, naming the last whole one, and passes over it on auto", async () => {
  using temporary = temporaryDirectory();
  const template = `${temporary.path}/template`;
  await runRanks([1, 2].map((step): Task => ({ do: "save", world: 2, directory: template, seed: step, step })));
  const tasks: Task[] = [];
  for (const [i, [, damage]] of DAMAGES.entries()) {
    const directory = `${temporary.path}/run-${i}`;
    fs.cpSync(template, directory, { recursive: true });
    damage(`${directory}/checkpoint-2`);
    // A worker of another size than that which saved.
    tasks.push({ do: "load", world: 3, directory, seed: 1, from: `${directory}/checkpoint-2` });
    tasks.push({ do: "load", world: 3, directory, seed: 1, from: "auto", broadcastFromRank0: i % 2 === 0 });
  }
  const outcomes = await runRanks(tasks);
  for (const [i, [what, , says]] of DAMAGES.entries()) {
    const directory = `${temporary.path}/run-${i}`;
    for (const { error } of outcomes[2 * i] ?? []) {
      assert.match(error, /^CheckpointError: /, what);
      assert.match(error, says, what);
      assert.ok(error.includes(`the last whole checkpoint is '${directory}/checkpoint-1'`), error);
      assert.equal(/The model holds some of its values by now/.test(error), what === "a flipped bit", error);
      // The path of the checkpoint opens the message.
      assert.ok(error.startsWith(`CheckpointError: ${directory}/checkpoint-2: `), error);
    }
    for (const { error, wrong, compared, value } of outcomes[2 * i + 1] ?? []) {
      assert.deepEqual([error, wrong, value["step"]], ["", 0, 1], what);
      assert.ok(compared > 0);
      assert.match(String(value["skipped"]), says);
    }
  }
});

test("loadCheckpoint() finds nothing where nothing is, and says so when there is nothing whole", async () => {
  using temporary = temporaryDirectory();
  const [empty, broken] = [`${temporary.path}/empty`, `${temporary.path}/broken`];
  fs.mkdirSync(`${broken}/checkpoint-5`, { recursive: true });
  const [auto, none, named] = await runRanks([
    { do: "load", world: 2, directory: empty, seed: 1 },
    { do: "load", world: 2, directory: broken, seed: 1 },
    { do: "load", world: 2, directory: empty, seed: 1, from: `${empty}/checkpoint-9` },
  ]);
  for (const { value } of auto ?? []) assert.equal(value["found"], false);
  for (const { error } of none ?? []) {
    assert.match(error, /Expected a whole checkpoint, got none:\n {2}.*checkpoint-5: manifest.json is missing/);
  }
  for (const { error } of named ?? []) assert.match(error, /got nothing there; there is no other whole checkpoint/);
});

test("loadCheckpoint() lists every tensor that does not fit", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const [, other, wider, part] = await runRanks([
    { do: "save", world: 2, directory, seed: 1, llama: TINY_LLAMA },
    { do: "load", world: 2, directory, seed: 1 },
    { do: "load", world: 2, directory, seed: 1, llama: { ...TINY_LLAMA, vocab_size: 40, num_hidden_layers: 2 } },
    { do: "load", world: 2, directory, seed: 1, strict: false },
  ]);
  for (const { error, value } of part ?? []) {
    assert.equal(error, "", "nothing of it fits, which is what was asked for");
    const [missing, unexpected] = [String(value["missing"]), String(value["unexpected"])].map((list) =>
      list.split(",")
    );
    assert.ok(missing?.includes("blocks.1.kernel") && missing.includes("scale.exp_avg"));
    assert.ok(unexpected?.includes("model.norm.weight") && unexpected.includes("model.norm.weight.exp_avg_sq"));
  }
  for (const { error } of other ?? []) {
    assert.match(error, /CheckpointError: .*Tensors do not fit the model, 20 problems:/);
    assert.match(error, /missing: 'blocks.1.kernel' \[3, 50, 8\]/);
    assert.match(error, /unexpected: 'model.norm.weight' F32 \[16\]/);
  }
  for (const { error } of wider ?? []) {
    assert.match(error, /10 problems/);
    assert.match(error, /shape: 'model.embed_tokens.weight' expected \[40, 16\], got \[32, 16\]/);
    assert.match(error, /missing: 'model.layers.1.mlp.up_proj.weight' \[24, 16\]/);
  }
});

test("saveCheckpoint() that fails on one rank stops all, and leaves what was there", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  await runRanks([{ do: "save", world: 3, directory, seed: 1, step: 1 }]);
  const before = contents(directory);
  const [failed] = await runRanks([{ do: "save", world: 3, directory, seed: 2, step: 2, broken: 1 }]);
  assert.match(failed?.[1]?.error ?? "", /^Error: this memory cannot be reached/);
  for (const rank of [0, 2]) {
    assert.match(
      failed?.[rank]?.error ?? "",
      /^CollectiveError: .*save checkpoint 2.*rank 1 failed: Error: this memory/,
    );
  }
  assert.deepEqual(contents(directory), before);
});

test("saveCheckpoint() into a place that is no directory stops all ranks with the path", async () => {
  using temporary = temporaryDirectory();
  const file = temporary.write("file", "x");
  const [outcomes] = await runRanks([{ do: "save", world: 2, directory: `${file}/run`, seed: 1 }]);
  assert.match(
    outcomes?.[0]?.error ?? "",
    /^FileError: Cannot make directory '.*file\/run'.*a part of the path is a file/,
  );
  assert.match(outcomes?.[1]?.error ?? "", /^CollectiveError: .*rank 0 failed: FileError: Cannot make directory/);
});

test(
  "saveCheckpoint() into a directory without write permission stops all ranks",
  { skip: process.getuid?.() === 0 ? "needs a user who is not root" : false },
  async () => {
    using temporary = temporaryDirectory();
    fs.chmodSync(temporary.path, 0o555);
    const [outcomes] = await runRanks([{ do: "save", world: 2, directory: temporary.path, seed: 1 }]);
    fs.chmodSync(temporary.path, 0o755);
    assert.match(outcomes?.[0]?.error ?? "", /permission denied/);
    assert.match(outcomes?.[1]?.error ?? "", /rank 0 failed: .*permission denied/);
  },
);

test("saveCheckpoint() cleans up what a killed save left, and a replaced checkpoint gets its name back", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  await runRanks([1, 2].map((step): Task => ({ do: "save", world: 2, directory, seed: step, step })));
  // Killed in the middle of step 3, and between the renames that replace step 2.
  temporary.write("checkpoint-3.partial/shard-00001-model-00001-of-00001.safetensors", "half");
  fs.renameSync(`${directory}/checkpoint-2`, `${directory}/checkpoint-2.replaced`);
  const [loaded] = await runRanks([{ do: "load", world: 1, directory, seed: 2 }]);
  assert.deepEqual([loaded?.[0]?.error, loaded?.[0]?.wrong, loaded?.[0]?.value["step"]], ["", 0, 2]);
  assert.deepEqual(fs.readdirSync(directory).sort(), ["checkpoint-1", "checkpoint-2"]);
});

test("saveCheckpoint() replaces the checkpoint of the same step and keeps the newest", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const saves = [1, 2, 3].map((step): Task => ({ do: "save", world: 2, directory, seed: step, step }));
  await runRanks([...saves, { do: "save", world: 1, directory, seed: 9, step: 3, keepLast: 2 }]);
  assert.deepEqual(fs.readdirSync(directory).sort(), ["checkpoint-2", "checkpoint-3"]);
  const [loaded] = await runRanks([{ do: "load", world: 2, directory, seed: 9 }]);
  assert.deepEqual(loaded?.map(({ error, wrong }) => [error, wrong]), [["", 0], ["", 0]]);
});

test("saveCheckpoint() on a disk that is full leaves the previous checkpoint and nothing else", () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const script = fileURLToPath(new URL("./save_limited.ts", import.meta.url));
  const run = (step: number, blocks: string): string => {
    const command = [
      process.execPath,
      ...process.versions["deno"] === undefined ? [] : ["run", "-A", "--no-check"],
      script,
    ];
    // A limit on file sizes stands for the full disk: both fail in the middle of a write.
    const shell = `trap '' XFSZ; ulimit -f ${blocks}; exec "$@"`;
    const args = ["-c", shell, "bash", ...command, directory, String(step)];
    const result = spawnSync("bash", args, { encoding: "utf8", env: limitedEnvironment() });
    return result.stdout + result.stderr;
  };
  assert.match(run(1, "unlimited"), /^saved\nsaved\n/);
  const before = contents(directory);
  const text = run(2, "8");
  assert.match(text, /FileError: Cannot write '.*shard-0000[12]-model.*ulimit -f.*EFBIG/);
  assert.match(text, /CollectiveError: .*save checkpoint 2.*failed: FileError|(FileError: [^\n]*\n){2}/);
  assert.deepEqual(contents(directory), before);
});
