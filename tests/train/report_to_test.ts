/** A run's metrics at trackers, through the launcher. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { temporaryDirectory } from "../support/temporary.ts";
import { sharedTest as test } from "../support/share.ts";
import { keepRanks } from "./kept_ranks.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const FLAGS = ["--sequence-length", "32", "--global-batch", "4", "--sample-tokens", "0"];

test("--report-to tensorboard writes a file of events for each start, beside metrics.jsonl", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("data.txt", "the quick brown fox jumps over the lazy dog. ".repeat(200));
  const out = folder.file("out");
  const flags = [...FLAGS, "--data", data, "--out", out, "--cache", folder.file("cache"), "--report-to", "tensorboard"];
  const first = await run([...flags, "--steps", "4", "--stop-after", "2", "--save-every", "2"]);
  assert.equal(first.code, 0, first.stderr);
  const second = await run([...flags, "--steps", "4", "--save-every", "2", "--resume", "auto"]);
  assert.equal(second.code, 0, second.stderr);
  const files = readdirSync(`${out}/tensorboard`).sort();
  assert.equal(files.length, 2);
  // Each record begins with the 8 bytes of its length; scalars are told by their tag.
  const numSteps = files.map((name) =>
    readFileSync(`${out}/tensorboard/${name}`, "latin1").split("train/loss").length - 1
  );
  assert.deepEqual(numSteps, [2, 2]);
  assert.equal(readFileSync(`${out}/metrics.jsonl`, "utf8").trim().split("\n").length, 4);
});

test("--report-to mlflow without a server's address ends all ranks before the first step", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("data.txt", "the quick brown fox jumps over the lazy dog. ".repeat(200));
  const flags = ["--data", data, "--out", folder.file("out"), "--cache", folder.file("cache"), "--report-to", "mlflow"];
  const { code, stderr } = await run([...FLAGS, "--steps", "2", ...flags]);
  assert.notEqual(code, 0);
  assert.match(stderr, /MLFLOW_TRACKING_URI: expected the http:\/\/ address of an MLflow server, got nothing/);
  assert.ok(!readdirSync(folder.path).includes("out"));
});

test("--report-to comet names the trackers that there are", async () => {
  const { code, stderr } = await run(["--report-to", "comet"], { ranks: 1 });
  assert.notEqual(code, 0);
  assert.match(stderr, /report-to.*tensorboard.*mlflow.*wandb.*got 'comet'/s);
});
