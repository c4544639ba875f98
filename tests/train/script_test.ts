/** A training script from outside: help, exit codes, what it prints and writes. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { test } from "node:test";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, losses, metricLines, run, startAlone } from "./runs.ts";

const TIMEOUT = { timeout: 60_000 };

test("a training script shows its help", TIMEOUT, async () => {
  const { code, stdout, stderr } = await startAlone(["--help"]).ended;
  assert.deepEqual([code, stderr], [0, ""]);
  assert.match(stdout, /^Usage: tiny\.ts \[flags\]\n\ndata:\n/);
  assert.match(stdout, /--learning-rate <number> +Peak learning rate \(default: 0\.002\)/);
});

test("--help is printed by one rank", TIMEOUT, async () => {
  const { code, stdout } = await run(["--help"]);
  assert.equal(code, 0);
  assert.match(stdout, /^\[rank0\] Usage: tiny\.ts/);
  assert.doesNotMatch(stdout, /\[rank1\]/);
});

test("a run replaces another's output only when it is told to", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "2");
  assert.equal((await run(flags, { ranks: 1 })).code, 0);
  const before = metricLines(folder);
  const refused = await run([...flags, "--steps", "1"], { ranks: 1 });
  assert.equal(refused.code, 2, refused.stderr);
  assert.match(
    refused.stderr,
    /out: expected a folder without another run's output, got '.*out' with '.*metrics\.jsonl'\. Give another folder, or replace what is there with '--overwrite'/,
  );
  assert.deepEqual(metricLines(folder), before);
  rmSync(folder.file("out/metrics.jsonl"));
  assert.match((await run(flags, { ranks: 1 })).stderr, /with '.*out\/model'/);
  const replaced = await run([...flags, "--steps", "1", "--overwrite"], { ranks: 1 });
  assert.equal(replaced.code, 0, replaced.stderr);
  assert.equal(metricLines(folder).length, 1);
});

test("a run trains, prints its steps and a sample, and writes metrics and a model", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const started = Date.now() / 1000;
  const { code, stdout, stderr } = await run(flagsIn(folder, "--steps", "30", "--log-every", "10"));
  assert.equal(code, 0, stderr);
  const steps = [...stdout.matchAll(/^\[rank0\] step (\d+)\/30 /gm)].map((match) => Number(match[1]));
  assert.deepEqual(steps, [1, 10, 20, 30]);
  assert.match(stdout, /\[rank0\] Sample:\n\[rank0\] interface /);
  // The launcher says which rank a line is from, so the line does not.
  assert.match(
    stderr,
    /^\[rank0\] info +FSDP over 2 ranks \(shm\), 135760 parameters, float32, about [\d.]+ MiB a rank$/m,
  );
  assert.doesNotMatch(stdout + stderr, /^\[rank1\]/m);

  const lines = metricLines(folder).map((line): Record<string, unknown> => JSON.parse(line));
  assert.deepEqual(lines.map(({ step }) => step), Array.from({ length: 30 }, (_, i) => i + 1));
  const keys = ["step", "loss", "learning_rate", "grad_norm", "tokens_per_second", "wall_time", "peak_bytes"];
  const readme = readFileSync(new URL("../../README.md", import.meta.url), "utf8");
  for (const key of keys) {
    assert.ok(readme.includes(`\`${key}\` (`) || readme.includes(`\`${key}\`,`), `README has no ${key}`);
  }
  let before = started;
  for (const line of lines) {
    assert.deepEqual(Object.keys(line), keys);
    for (const key of keys) assert.ok(Number(line[key]) > 0, `${key} is ${line[key]}`);
    const time = Number(line["wall_time"]);
    assert.ok(before <= time && time <= Date.now() / 1000, `wall_time is ${time} after ${before}`);
    before = time;
  }
  const found = losses(folder);
  // Nothing is known at first: ln 4096 = 8.318. The text has a hundred words.
  assert.ok(Math.abs((found.get(1) ?? 0) - Math.log(4096)) < 0.05, `first loss ${found.get(1)}`);
  assert.ok((found.get(30) ?? 9) < 6, `last loss ${found.get(30)}`);
  const names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
  assert.deepEqual(readdirSync(folder.file("out/model")).sort(), names);
});

test("the ranks' number and the kind of parallelism change nothing that is learned", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const variants = [["fsdp", 1], ["fsdp", 2], ["ddp", 2]] as const;
  const all: number[][] = [];
  for (const [strategy, ranks] of variants) {
    const out = `${strategy}${ranks}`;
    const flags = flagsIn(folder, "--steps", "4", "--strategy", strategy, "--out", folder.file(out));
    const { code, stderr } = await run(flags, { ranks });
    assert.equal(code, 0, stderr);
    all.push([...losses(folder, out).values()]);
  }
  const [one = [], two = [], ddp = []] = all;
  assert.equal(one.length, 4);
  assert.deepEqual(ddp, two);
  for (const [i, loss] of one.entries()) assert.ok(Math.abs((two[i] ?? 0) - loss) <= 1e-5 * loss);
});

test("a script with no launcher and no environment trains alone, and says who speaks", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stdout, stderr } = await startAlone(flagsIn(folder, "--steps", "2")).ended;
  assert.equal(code, 0, stderr);
  assert.match(stderr, /^info +\[rank 0\] FSDP over 1 rank \(loopback\)/m);
  assert.match(stdout, /^step 2\/2 /m);
});

test("a script trains from a configuration file, and flags win", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const file = folder.write("run.yaml", "steps: 3\nglobal_batch: 2\nsampleTokens: 0\n");
  const { code, stderr } = await startAlone([...flagsIn(folder), "--config", file, "--global-batch", "4"]).ended;
  assert.equal(code, 0, stderr);
  assert.equal(metricLines(folder).length, 3);
});

test("a script goes on from nothing where the prompt is empty", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stdout, stderr } = await startAlone(flagsIn(folder, "--steps", "1", "--prompt", "")).ended;
  assert.equal(code, 0, stderr);
  assert.match(stdout, /Sample:\n/);
});

test("FULLYSHARD_LOG decides what is logged, and a wrong one is told", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const quiet = await startAlone(flagsIn(folder, "--steps", "1"), { env: { FULLYSHARD_LOG: "warn" } }).ended;
  assert.deepEqual([quiet.code, quiet.stderr], [0, ""]);
  const wrong = await startAlone(flagsIn(folder, "--steps", "1"), { env: { FULLYSHARD_LOG: "loud" } }).ended;
  assert.notEqual(wrong.code, 0);
  assert.match(wrong.stderr, /Cannot log at level 'loud' as the levels are debug, info, warn, error/);
});

test("a model that was written is trained on from where it was", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const first = await run(flagsIn(folder, "--steps", "20"));
  assert.equal(first.code, 0, first.stderr);
  const last = losses(folder).get(20) ?? 0;
  const tuned = await run(
    flagsIn(folder, "--steps", "2", "--model", folder.file("out/model"), "--out", folder.file("tuned")),
  );
  assert.equal(tuned.code, 0, tuned.stderr);
  const begins = losses(folder, "tuned").get(1) ?? 9;
  assert.ok(Math.abs(begins - last) < 0.5, `ended at ${last}, went on at ${begins}`);
  const [before, after] = ["out", "tuned"].map((out) => readFileSync(folder.file(`${out}/model/config.json`), "utf8"));
  assert.equal(after, before);
});
