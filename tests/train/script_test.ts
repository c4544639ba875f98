/** A training script from outside: help, exit codes, what it prints and writes. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { flagsIn, losses, metricLines, run, startAlone } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());

const TIMEOUT = { timeout: 60_000 };

test("a training script shows its help", TIMEOUT, async () => {
  const { code, stdout, stderr } = await startAlone(["--help"]).ended;
  assert.deepEqual([code, stderr], [0, ""]);
  assert.match(stdout, /^Usage: tiny\.ts \[flags\]\n\ndata:\n/);
  assert.match(stdout, /^FULLYSHARD_LOG: least level that is logged: debug, info \(the default\), warn/m);
  assert.match(
    stdout,
    /--\[no-\]reshard-after-forward +Free a block's parameters after its forward,\n +and gather them again in the backward \(less/,
  );
});

test("--help is printed once and the same with a launcher, at words within the width", TIMEOUT, async () => {
  const launched = await run(["--help"]);
  assert.deepEqual([launched.code, launched.stderr], [0, ""]);
  assert.equal(launched.stdout, (await startAlone(["--help"]).ended).stdout);
  for (const [width, env] of [[80, {}], [60, { COLUMNS: "60" }]] as const) {
    const { stdout } = await run(["--help"], { ranks: 1, env });
    for (const line of stdout.split("\n")) assert.ok(line.length <= width, line);
  }
});

test("a flag of the launcher behind the script is answered by its place", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, "--nproc-per-node", "2"), { ranks: 1 });
  assert.equal(code, 2, stderr);
  assert.match(
    stderr,
    /^fullyshard: --nproc-per-node belongs to the launcher, before the script: 'fullyshard run --nproc-per-node … .*tiny\.ts'$/m,
  );
});

test("a run replaces another's output only when it is told to", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "2");
  assert.equal((await kept.run(flags, { ranks: 1 })).code, 0);
  const before = metricLines(folder);
  const refused = await kept.run([...flags, "--steps", "1"], { ranks: 1 });
  assert.equal(refused.code, 2, refused.stderr);
  assert.match(
    refused.stderr,
    /out: expected a folder without another run's output, got '.*out' with '.*metrics\.jsonl'\. Give another folder with '--out', replace the old output with '--overwrite'/,
  );
  assert.deepEqual(metricLines(folder), before);
  rmSync(folder.file("out/metrics.jsonl"));
  assert.match((await kept.run(flags, { ranks: 1 })).stderr, /with '.*out\/model'/);
  const replaced = await kept.run([...flags, "--steps", "1", "--overwrite"], { ranks: 1 });
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
  // The sample goes on from the first words of the data.
  assert.match(stdout, /\[rank0\] Sample:\n\[rank0\] the \w+ of \w+ number 0 is \w+/);
  assert.match(stderr, /^\[rank0\] info +\d{3} samples of 16 tokens: an epoch is \d+ steps$/m);
  // The launcher says which rank a line is from, so the line does not.
  assert.match(
    stderr,
    /^\[rank0\] info +FSDP over 2 ranks \(shm\), 135760 parameters, float32, about [\d.]+ MiB a rank$/m,
  );
  assert.doesNotMatch(stdout + stderr, /^\[rank1\]/m);

  const lines = metricLines(folder).map((line): Record<string, unknown> => JSON.parse(line));
  assert.deepEqual(lines.map(({ step }) => step), Array.from({ length: 30 }, (_, i) => i + 1));
  const keys = ["step", "loss", "learning_rate", "grad_norm", "tokens_per_second", "wall_time", "peak_bytes"];
  const recipes = readFileSync(new URL("../../docs/recipes.md", import.meta.url), "utf8");
  for (const key of keys) assert.match(recipes, new RegExp(`\`${key}\`[ ,\n]`));
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
    const { code, stderr } = await kept.run(flags, { ranks });
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
  const flags = flagsIn(folder);
  const data = "data/text.txt";
  const file = folder.write("run.yaml", `data: ${folder.file(data)}\nsteps: 3\nglobal_batch: 2\n`);
  const rest = flags.filter((_, i) => i > 1);
  assert.deepEqual(flags.slice(0, 2), ["--data", folder.file(data)]);
  const { code, stderr } = await startAlone([...rest, "--config", file, "--global-batch", "4"]).ended;
  assert.equal(code, 0, stderr);
  assert.equal(metricLines(folder).length, 3);
});

longTest("--sample-tokens 0 prints no sample, and --prompt says what a sample goes on from", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const none = await startAlone(flagsIn(folder, "--steps", "1", "--sample-tokens", "0")).ended;
  assert.equal(none.code, 0, none.stderr);
  assert.doesNotMatch(none.stdout, /Sample/);
  const own = await startAlone(flagsIn(folder, "--steps", "1", "--overwrite", "--prompt", "a tensor")).ended;
  assert.equal(own.code, 0, own.stderr);
  assert.match(own.stdout, /Sample:\na tensor/);
});

longTest("a script's own prompt is for its own data", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const [, data = ""] = flagsIn(folder);
  const flags = flagsIn(folder, "--steps", "1", "--overwrite").slice(2);
  const own = await startAlone([...flags, `data=${data}`]).ended;
  assert.equal(own.code, 0, own.stderr);
  assert.match(own.stdout, /Sample:\nonce /);
  const given = await startAlone([...flags, `data=${data}`, "--data", data]).ended;
  assert.match(given.stdout, /Sample:\nthe /);
});

longTest("--data of a folder skips what is no text or not one's own, and says how many", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "1");
  folder.write("data/logo.png", Uint8Array.of(0x89, 0x50, 0x4e, 0x47));
  folder.write("data/old/words.bin", "text\0and zeros");
  folder.write("data/node_modules/a/index.js", "export {};");
  folder.write("data/.git/HEAD", "ref");
  const { code, stderr } = await run([...flags, "--data", folder.file("data")]);
  assert.equal(code, 0, stderr);
  const skipped =
    "Skipped 2 files without UTF-8 text \\(logo\\.png, words\\.bin\\), 1 node_modules folder, 1 hidden folder in .*data";
  assert.equal([...stderr.matchAll(new RegExp(`^\\[rank0\\] warn +${skipped}$`, "gm"))].length, 1, stderr);
  assert.match(stderr, /Tokenizing 1 file, 1\d\.\d KiB/);
});

longTest("text that is too short names its key, its files and its tokens", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const short = folder.write("short.txt", "a few words");
  const empty = folder.write("empty.jsonl", '\n{"text":""}\n');
  const [, data = "", ...flags] = flagsIn(folder, "--steps", "1", "--sequence-length", "64");
  for (const [key, more] of [["evalData", ["--data", data, "--eval-data"]], ["data", ["--data"]]] as const) {
    const { code, stderr } = await run([...flags, ...more, short], { ranks: 2 });
    assert.equal(code, 2, stderr);
    const tokens = new RegExp(
      `${key}: expected at least 65 tokens, which one sample of sequenceLength 64 takes, got \\d tokens in '.*short\\.txt': use more text`,
    );
    assert.match(stderr, tokens);
    assert.doesNotMatch(stderr, / at \w+ \(/);
    const none = await run([...flags, ...more, empty], { ranks: 1 });
    assert.match(none.stderr, new RegExp(`${key}: expected some text, got none in '.*empty\\.jsonl'`));
  }
});

test("a prompt with half of a surrogate pair is refused before training", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const config = folder.write("run.yaml", 'prompt: "cut \\ud83d"\n');
  const { code, stderr } = await kept.run(flagsIn(folder, "--steps", "1", "--config", config), { ranks: 1 });
  assert.equal(code, 2, stderr);
  assert.match(stderr, /prompt: expected valid Unicode text, got half of a surrogate pair/);
});

longTest(
  "a run from scratch begins at 2e-3, fine-tuning at 2e-5, with a tenth of the steps to warm up",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const usual = (...more: string[]): string[] =>
      // Without the rate and the warm-up that the other tests take.
      flagsIn(folder, "--steps", "20", "--stop-after", "2", "--schedule", "constant", ...more).filter((
        flag,
        i,
        flags,
      ) => !["--learning-rate", "--warmup-steps"].some((name) => flag === name || flags[i - 1] === name));
    const rates = (out: string): number[] =>
      metricLines(folder, out).map((line) => {
        const { learning_rate: rate }: { learning_rate: number } = JSON.parse(line);
        return rate;
      });
    assert.equal((await run(usual(), { ranks: 1 })).code, 0);
    assert.deepEqual(rates("out"), [1e-3, 2e-3]);
    const tokenizer = fileURLToPath(new URL("../../examples/data/tokenizer.json", import.meta.url));
    const from = ["--model", folder.file("out/checkpoint-2"), "--tokenizer", tokenizer, "--out", folder.file("tuned")];
    assert.equal((await run(usual(...from), { ranks: 1 })).code, 0);
    assert.deepEqual(rates("tuned"), [1e-5, 2e-5]);
    const own = ["--warmup-steps", "4", "--learning-rate", "0.4", "--out", folder.file("own")];
    assert.equal((await run([...usual(), ...own], { ranks: 1 })).code, 0);
    assert.deepEqual(rates("own"), [0.1, 0.2]);
  },
);

longTest("a script goes on from nothing where the prompt is empty", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stdout, stderr } = await startAlone(flagsIn(folder, "--steps", "1", "--prompt", "")).ended;
  assert.equal(code, 0, stderr);
  assert.match(stdout, /Sample:\n/);
});

longTest(
  "a sample has as many tokens as the model has positions, and a prompt that leaves none is refused at once",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const long = await startAlone(flagsIn(folder, "--steps", "1", "--sample-tokens", "1000")).ended;
    assert.equal(long.code, 0, long.stderr);
    const flags = flagsIn(folder, "--steps", "1", "--out", folder.file("refused"), "--prompt", "shard ".repeat(64));
    const refused = await startAlone(flags).ended;
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /prompt: expected fewer tokens than the model's 64 positions, got \d+/);
    assert.doesNotMatch(refused.stdout, /step 1/);
  },
);

test("a run evaluates held-out text as it goes and at its end, and learns nothing from it", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const held = folder.write("held.txt", "the shard of loss number 7 is rank\n".repeat(9));
  const plain = await kept.run(flagsIn(folder, "--steps", "5", "--out", folder.file("plain")));
  assert.equal(plain.code, 0, plain.stderr);
  const flags = flagsIn(folder, "--steps", "5", "--log-every", "5", "--eval-data", held, "--eval-every", "2");
  const { code, stdout, stderr } = await kept.run(flags);
  assert.equal(code, 0, stderr);
  const lines = metricLines(folder).map((line): Record<string, unknown> => JSON.parse(line));
  const evaluated = lines.filter((line) => "eval_loss" in line);
  assert.deepEqual(evaluated.map(({ step }) => step), [2, 4, 5]);
  const found = evaluated.map((line) => Number(line["eval_loss"]));
  assert.ok(found.every((loss, i) => loss > 4 && loss < (found[i - 1] ?? 8.4)), `eval losses ${found}`);
  const told = [...stdout.matchAll(/^step (\d)\/5 .* eval loss ([\d.]+) /gm)].map(([, step, loss]) => [step, loss]);
  assert.deepEqual(told, evaluated.map(({ step }, i) => [String(step), found[i]?.toFixed(4)]));
  assert.deepEqual(losses(folder), losses(folder, "plain"));
});

longTest(
  "an evaluation without text is refused, and one without a number of steps comes at the end",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const refused = await startAlone(flagsIn(folder, "--eval-every", "2")).ended;
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /evalData: expected files for evalEvery to evaluate on, got nothing/);
    const held = folder.write("held.txt", "the shard of loss number 7 is rank\n".repeat(9));
    const { code, stderr } = await startAlone(flagsIn(folder, "--steps", "3", "--eval-data", held)).ended;
    assert.equal(code, 0, stderr);
    assert.deepEqual(metricLines(folder).map((line) => line.includes("eval_loss")), [false, false, true]);
  },
);

longTest("FULLYSHARD_LOG decides what is logged, and a wrong one is told", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const quiet = await startAlone(flagsIn(folder, "--steps", "1"), { env: { FULLYSHARD_LOG: "warn" } }).ended;
  assert.deepEqual([quiet.code, quiet.stderr], [0, ""]);
  const wrong = await startAlone(flagsIn(folder, "--steps", "1"), { env: { FULLYSHARD_LOG: "loud" } }).ended;
  assert.notEqual(wrong.code, 0);
  assert.match(wrong.stderr, /Cannot log at level 'loud' as the levels are debug, info, warn, error/);
});

test("a model that was written is trained on from where it was", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const first = await kept.run(flagsIn(folder, "--steps", "20"));
  assert.equal(first.code, 0, first.stderr);
  const last = losses(folder).get(20) ?? 0;
  const tuned = await kept.run(
    flagsIn(folder, "--steps", "2", "--model", folder.file("out/model"), "--out", folder.file("tuned")),
  );
  assert.equal(tuned.code, 0, tuned.stderr);
  const begins = losses(folder, "tuned").get(1) ?? 9;
  assert.ok(Math.abs(begins - last) < 0.5, `ended at ${last}, went on at ${begins}`);
  const [before, after] = ["out", "tuned"].map((out) => readFileSync(folder.file(`${out}/model/config.json`), "utf8"));
  assert.equal(after, before);
});

longTest(
  "a model with more ids than its tokenizer is told of it before it trains, and shows a sample",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = flagsIn(folder, "--steps", "1", "tokens=bytes");
    const { code, stdout, stderr } = await run(flags, { ranks: 1 });
    assert.equal(code, 0, stderr);
    assert.match(
      stderr,
      /warn +Tokens are bytes, as no --tokenizer is given: 3839 of the model's 4096 ids are never used/,
    );
    assert.match(stdout, /Sample:/);

    // A resume that finds no checkpoint does not replace the output of the earlier run.
    const again = await run([...flags, "--resume", "auto"], { ranks: 1 });
    assert.equal(again.code, 2, again.stderr);
    assert.match(again.stderr, /out: expected a folder without another run's output/);
  },
);
