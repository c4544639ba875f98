/** Evaluations of runs, seen from outside: several sets, the best model, early ends, resumes, callbacks. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, essence, flagsIn, metricLines, run as launch } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 120_000 };
const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/chat/${name}`, import.meta.url));

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

/** The lines of a run that have figures of evaluations, by step. */
function evaluations(folder: TemporaryDirectory, out: string): Map<number, Record<string, number>> {
  return new Map(
    metricLines(folder, out).map((text): Record<string, number> => JSON.parse(text)).flatMap((line) => {
      const figures = Object.fromEntries(Object.entries(line).filter(([name]) => name.startsWith("eval_")));
      return Object.keys(figures).length === 0 ? [] : [[line["step"] ?? NaN, figures]];
    }),
  );
}

function checkpoints(folder: TemporaryDirectory, out: string): string[] {
  return readdirSync(folder.file(out)).filter((name) => name.startsWith("checkpoint-")).sort();
}

function stateOf(folder: TemporaryDirectory, checkpoint: string): Record<string, unknown> {
  return JSON.parse(readFileSync(folder.file(`${checkpoint}/manifest.json`), "utf8")).state.best;
}

/** Held-out texts: one like the training's, and one unlike it, which the model forgets the more the longer it trains. */
function heldOut(folder: TemporaryDirectory): readonly [like: string, unlike: string] {
  return [
    folder.write("like.txt", "the shard of rank number 7 is tensor\nthe step of loss number 9 is gather\n".repeat(4)),
    folder.write("unlike.txt", "ZZZZ QQQQ 0000 XXXX ".repeat(12)),
  ];
}

longTest(
  "a run evaluates several sets, to the same bits on 1, 2, 3 and 4 ranks, in bfloat16 too",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const [like, unlike] = heldOut(folder);
    const flags = ["--eval-data", like, "--eval-data", `other=${unlike}`, "--eval-every", "2", "--steps", "4"];
    const all = flagsIn(folder, ...flags, "--global-batch", "12", "--save-every", "0");
    for (const precision of ["float32", ...onlyInAll(["bfloat16"])]) {
      const figures: string[] = [];
      for (const ranks of precision === "float32" ? [1, 3, ...onlyInAll([2, 4])] : [1, 2]) {
        const out = `${precision}-${ranks}`;
        // Weights that never change, so that all depends on the evaluation alone.
        const more = ["--out", folder.file(out), "--precision", precision, "--learning-rate", "0"];
        const { stdout } = succeeds(await run([...all, ...more], { ranks }));
        assert.match(stdout, /step 2\/4 {2}loss \S+ {2}eval loss \S+ {2}eval other loss \S+ {2}lr/);
        figures.push(JSON.stringify([...evaluations(folder, out)]));
      }
      assert.equal(new Set(figures).size, 1, figures.join("\n"));
      const [[, first = {}] = assert.fail()] = evaluations(folder, `${precision}-1`);
      assert.deepEqual(Object.keys(first), [
        ...["eval_loss", "eval_perplexity", "eval_mean_token_accuracy"],
        ...["eval_other_loss", "eval_other_perplexity", "eval_other_mean_token_accuracy"],
      ]);
    }
  },
);

longTest("the model of the best evaluation is kept, loaded at the end, and known after a resume", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const [like, unlike] = heldOut(folder);
  const sets = [
    "--eval-data",
    `like=${like}`,
    "--eval-data",
    `unlike=${unlike}`,
    "--metric-for-best-model",
    "unlike_loss",
  ];
  const best = [...sets, "--eval-every", "1", "--load-best-model-at-end", "--keep-last", "2", "--save-every", "3"];
  const flags = (out: string, ...more: readonly string[]): string[] =>
    flagsIn(
      folder,
      "vocab=257",
      "tokens=bytes",
      "--out",
      folder.file(out),
      "--steps",
      "8",
      "--learning-rate",
      "0.03",
      ...best,
      ...more,
    );
  const { stderr } = succeeds(await run(flags("whole")));
  const figures = evaluations(folder, "whole");
  assert.equal(figures.size, 8);
  const losses = Array.from(figures, ([step, { eval_unlike_loss: loss = NaN }]) => [step, loss] as const);
  const [bestStep, bestLoss] = losses.reduce((a, b) => b[1] < a[1] ? b : a);
  assert.ok(bestStep < 7, `the best step is ${bestStep}, too late to show that it is kept: ${losses.join("; ")}`);
  assert.match(stderr, new RegExp(`Best evaluation: eval_unlike_loss ${bestLoss} after step ${bestStep}, saved as`));
  assert.match(stderr, new RegExp(`Loaded the weights of step ${bestStep}\n`));
  assert.ok(checkpoints(folder, "whole").includes(`checkpoint-${bestStep}`), checkpoints(folder, "whole").join());
  assert.equal(checkpoints(folder, "whole").length, 2);
  assert.deepEqual(stateOf(folder, "whole/checkpoint-8"), {
    metric: "eval_unlike_loss",
    best_metric: bestLoss,
    best_global_step: bestStep,
    best_model_checkpoint: `checkpoint-${bestStep}`,
    evaluations_without_gain: 8 - bestStep,
  });
  // The model is that of the best step, to the bit: a run that ends there writes the same.
  succeeds(await run(flags("short", "--stop-after", String(bestStep), "--state-dict-type", "full")));
  const weights = (folderName: string): Buffer => readFileSync(folder.file(`${folderName}/model/model.safetensors`));
  assert.ok(weights("whole").equals(weights(`short/checkpoint-${bestStep}`)), "the model is another one");
  // Stopped after the best step, and gone on with by one rank: the same end, and the best is still there.
  succeeds(await run(flags("resumed", "--stop-after", "6", "--micro-batches", "1")));
  const resumed = succeeds(
    await run(flags("resumed", "--resume", "auto", "--micro-batches", "2", "--keep-last", "1"), { ranks: 1 }),
  );
  assert.match(
    resumed.stderr,
    new RegExp(`Best evaluation: eval_unlike_loss ${bestLoss} after step ${bestStep}, saved as`),
  );
  assert.deepEqual(metricLines(folder, "resumed").map(essence), metricLines(folder, "whole").map(essence));
  assert.ok(weights("resumed").equals(weights("whole")));
  // One checkpoint is kept, and besides it the best and the one resumed from.
  const kept = [...new Set([bestStep, 6, 8])].map((step) => `checkpoint-${step}`).sort();
  assert.deepEqual(checkpoints(folder, "resumed"), kept);
});

test("a run ends early, with a model, when evaluations are no better", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const [, unlike] = heldOut(folder);
  const flags = ["--eval-data", unlike, "--eval-every", "1", "--early-stopping-patience", "2", "--steps", "60"];
  const { stderr } = succeeds(await run(flagsIn(folder, ...flags, "--learning-rate", "0.03")));
  const [, step = ""] = /Stopped early after step (\d+) of 60 \(no improvement in 2 evaluations\)/.exec(stderr) ??
    [];
  const losses = [...evaluations(folder, "out").values()].map(({ eval_loss: loss = NaN }) => loss);
  assert.equal(losses.length, Number(step));
  assert.equal(losses.indexOf(Math.min(...losses)), losses.length - 3);
  assert.ok(readdirSync(folder.file("out/model")).includes("model.safetensors"));
  assert.deepEqual(checkpoints(folder, "out"), [`checkpoint-${step}`]);
});

longTest("a run evaluates after each epoch, chats beside text and text beside chats", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const rows = Array.from({ length: 8 }, (_, i) => ({
    messages: [{ role: "user", content: `${i}?` }, { role: "assistant", content: `It is ${"a".repeat(i)}.` }],
  }));
  const chats = folder.write("chats.jsonl", rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  const [like] = heldOut(folder);
  const places = [
    "vocab=512",
    "--tokenizer",
    fixture("bytes"),
    "--cache",
    folder.file("cache"),
    "--sample-tokens",
    "0",
  ];
  const sizes = ["--steps", "5", "--global-batch", "4", "--sequence-length", "64"];
  const template = ["--chat-template", fixture("templates/chatml.jinja"), "--loss-on", "assistant"];
  const both = ["--eval-data", `chats=${chats}`, "--eval-data", `text=${like}`];
  const flags = (data: string, out: string, ...more: readonly string[]): string[] => [
    ...[...places, ...sizes, "--data", data, "--out", folder.file(out), ...more],
  ];
  succeeds(await run(flags(chats, "chats", ...template, ...both, "--eval-strategy", "epoch")));
  assert.deepEqual([...evaluations(folder, "chats").keys()], [2, 4, 5]);
  succeeds(await run(flags(like, "text", ...template, ...both)));
  assert.deepEqual([...evaluations(folder, "text").keys()], [5]);
  const wrong = await run(flags(like, "wrong", ...template, "--eval-data", like));
  assert.notEqual(wrong.code, 0);
  assert.match(
    wrong.stderr,
    /lossOn: expected chats, or prompts with completions, to train on, got 'assistant' for text/,
  );
  const unclear = await run(flags(chats, "unclear", ...template, ...both, "--load-best-model-at-end"));
  assert.notEqual(unclear.code, 0);
  assert.match(
    unclear.stderr,
    /metricForBestModel: expected one of chats_loss, .*text_loss.*, got nothing, for several sets/,
  );
});

test("callbacks are told of steps, evaluations and saves on every rank, and stop all ranks", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const [like] = heldOut(folder);
  const script = fileURLToPath(new URL("scripts/callbacks.ts", import.meta.url));
  for (const how of [[], ["--async-save"]]) {
    const out = `out${how.length}`;
    const flags = [
      "--eval-data",
      like,
      "--eval-every",
      "2",
      "--save-every",
      "3",
      "--steps",
      "9",
      "--out",
      folder.file(out),
    ];
    const { stderr } = succeeds(await launch([...flagsIn(folder, ...flags, ...how), "end=2"], { script }));
    const told = (rank: number): string[] =>
      [...stderr.matchAll(new RegExp(`told ${rank} (.*)`, "g"))].map(([, what = ""]) => what);
    const figures = "eval_loss,eval_perplexity,eval_mean_token_accuracy";
    for (const rank of [0, 1]) {
      const all = told(rank);
      assert.deepEqual(all.filter((what) => !what.startsWith("save")), [
        ...["step 1", `evaluate 2 ${figures}`, "step 2", "step 3", `evaluate 4 ${figures}`, "step 4"],
      ]);
      assert.deepEqual(all.filter((what) => what.startsWith("save")), ["save 3 checkpoint-3", "save 4 checkpoint-4"]);
    }
    assert.match(stderr, /Stopped after step 4 of 9, as a callback asked for/);
  }
});
