/** Runs that learn from a teacher: the losses of PyTorch and of TRL's GKDTrainer, the same bits however they are divided, what is refused. @module */
import assert from "node:assert/strict";
import { copyFileSync, readFileSync } from "node:fs";
import { after, describe, it, test as plainTest } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { Logger, resolveConfig, runTraining, TRAIN_SECTIONS } from "../../doors/config.ts";
import { divergence } from "../../src/train/distillation_loss.ts";
import { largest } from "../../src/train/distillation_step.ts";
import { openDevice } from "../../doors/device.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, metricLines, run } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const numbers = z.array(z.number());
const { rows: ROWS, runs: RUNS } = z.object({
  rows: z.array(z.record(z.string(), z.string())),
  runs: z.record(
    z.string(),
    z.object({
      options: z.object({
        top_k: z.number(),
        beta: z.number().optional(),
        temperature: z.number().optional(),
        alpha: z.number().optional(),
      }),
      losses: numbers,
      distill_loss: numbers,
      hard_loss: numbers,
    }),
  ),
}).parse(JSON.parse(readFileSync(fixture("distillation/expected.json"), "utf8")));

const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const data = folder.write("rows.jsonl", ROWS.map((row) => `${JSON.stringify(row)}\n`).join(""));

/** Flags of a run whose rows are as long as its longest sample, so that the dry run's memory is its own. */
function flags(out: string, ...more: readonly string[]): readonly string[] {
  return [
    ...["--model", fixture("preference/model"), "--teacher", fixture("distillation/teacher"), "--data", data],
    ...["--tokenizer", fixture("chat/bytes"), "--sequence-length", "27", "--global-batch", "8"],
    ...["--schedule", "constant", "--warmup-steps", "0", "--weight-decay", "0", "--sample-tokens", "0"],
    ...[
      "--learning-rate",
      "0.01",
      "--cpu-math",
      "wasm",
      "--cache",
      folder.file("cache"),
      "--out",
      folder.file(out),
      ...more,
    ],
  ];
}

/** Runs a training in this process, as one rank; returns the lines of its log. */
async function trains(argv: readonly string[]): Promise<readonly string[]> {
  const config = await resolveConfig(TRAIN_SECTIONS, { argv });
  const lines: string[] = [];
  const log = new Logger({ sink: ({ message }) => void lines.push(message) });
  await runTraining(config, { log, output: { line: () => undefined, status: undefined } });
  return lines;
}

function succeeds(ended: Ended): void {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
}

describe("runTraining() with a teacher has the losses of PyTorch", () => {
  const cases = Object.entries(RUNS);
  for (const [name, { options, ...expected }] of usualFirst(cases, (place) => place === 0 || place === 2)) {
    it(name, TIMEOUT, async () => {
      const own = ["--steps", String(expected.losses.length), "--distill-top-k", String(options.top_k)];
      if (options.beta !== undefined) own.push("--distill-beta", String(options.beta));
      if (options.temperature !== undefined) own.push("--distill-temperature", String(options.temperature));
      if (options.alpha !== undefined) own.push("--distill-alpha", String(options.alpha));
      const log = await trains(flags(`torch-${name}`, ...own));
      const found = metricLines(folder, `torch-${name}`).map((line): Record<string, number> => JSON.parse(line));
      assert.equal(found.length, expected.losses.length);
      for (const [i, line] of found.entries()) {
        const pairs = [["loss", expected.losses[i]], ["distill_loss", expected.distill_loss[i]]] as const;
        const hard = options.alpha === undefined ? [] : [["hard_loss", expected.hard_loss[i]]] as const;
        for (const [figure, value = NaN] of [...pairs, ...hard]) {
          const difference = Math.abs((line[figure] ?? NaN) - value);
          assert.ok(difference <= 1e-4, `${figure} of step ${i + 1}: ${line[figure]}, not ${value}`);
        }
      }
      const memory = log.find((line) => line.startsWith("Peak memory"));
      const [, used, planned] = /Peak memory of a rank: (.+) \(predicted (.+)\)/.exec(memory ?? "") ??
        [];
      assert.equal(used, planned, "the dry run counts the teacher");
    });
  }
});

test("a run with a teacher gives the same bits sharded, replicated, on one rank, and resumed", TIMEOUT, async () => {
  const four = ["--steps", "4", "--distill-top-k", "6", "--distill-beta", "0.5", "--distill-alpha", "0.2"];
  succeeds(await run(flags("fsdp", ...four)));
  const whole = metricLines(folder, "fsdp").map(essence);
  assert.match(whole[3] ?? "", /"distill_loss":.*"hard_loss":/);
  await trains(flags("alone", ...four, "--micro-batches", "2"));
  assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
  await trains(flags("half", ...four, "--stop-after", "3", "--micro-batches", "2"));
  await trains(flags("half", ...four, "--resume", "auto", "--micro-batches", "2"));
  assert.deepEqual(metricLines(folder, "half").map(essence), whole);
  for (const strategy of onlyInAll(["ddp"])) {
    succeeds(await run(flags("ddp", ...four, "--strategy", strategy)));
    assert.deepEqual(metricLines(folder, "ddp").map(essence), whole);
  }
  for (const ranks of onlyInAll([4])) {
    succeeds(await run(flags("four", ...four), { ranks }));
    await trains(flags("four-alone", ...four, "--micro-batches", "4"));
    assert.deepEqual(metricLines(folder, "four").map(essence), metricLines(folder, "four-alone").map(essence));
  }
});

test("a run with a teacher has one rank's losses over axes", TIMEOUT, async () => {
  const three = ["--steps", "3", "--distill-top-k", "6", "--distill-alpha", "0.2"];
  await trains(flags("near-alone", ...three));
  const linesOf = (out: string) =>
    metricLines(folder, out).map((line) => z.record(z.string(), z.unknown()).parse(JSON.parse(line)));
  for (
    const [axes, ranks] of usualFirst(
      [
        [["--tp-size", "2"], 2],
        [["--cp-size", "2", "--strategy", "ddp"], 2],
        [["--cp-size", "2", "--tp-plan", "auto", "--fsdp-size", "1"], 4],
        [["--tp-size", "2", "--fsdp-size", "2", "--enable-sequence-parallel"], 4],
      ] as const,
      (place) => place === 0,
    )
  ) {
    const out = axes.join("");
    succeeds(await run(flags(out, ...three, ...axes), { ranks }));
    for (const [i, expected] of linesOf("near-alone").entries()) {
      for (const figure of ["loss", "distill_loss", "hard_loss", "grad_norm"]) {
        const [value, found] = [Number(expected[figure]), Number(linesOf(out)[i]?.[figure])];
        const isNear = Math.abs(found - value) <= 2e-5 * Math.max(1, value);
        assert.ok(isNear, `${figure} of step ${i + 1} over ${axes.join(" ")}: ${found}, and ${value} on one rank`);
      }
    }
  }
});

it(
  "a run with a teacher refuses one whose tokenizer has another token at an id, by file and token",
  TIMEOUT,
  async () => {
    const base = fixture("distillation/teacher");
    const teacher = temporaryDirectory();
    using _teacher = teacher;
    for (const name of ["config.json", "model.safetensors"]) copyFileSync(`${base}/${name}`, teacher.file(name));
    const tokenizer = readFileSync(fixture("chat/bytes/tokenizer.json"), "utf8");
    const argv = flags("taught", "--steps", "1", "--overwrite").map((flag) => flag === base ? teacher.path : flag);
    // Without a tokenizer nothing can be compared, which is said; with the same tokens, nothing is.
    const said = (lines: readonly string[]): boolean =>
      lines.some((line) => /has no tokenizer\.json: its ids/.test(line));
    assert.ok(said(await trains(argv)));
    teacher.write("tokenizer.json", tokenizer);
    assert.ok(!said(await trains(argv)));
    teacher.write("tokenizer.json", tokenizer.replaceAll('"<unk>"', '"<odd>"'));
    await assert.rejects(trains(argv), (error: Error) => {
      assert.match(
        error.message,
        /teacher: expected .* the tokens of '.*chat\/bytes\/tokenizer\.json', where 2 is "<unk>"/,
      );
      assert.match(error.message, /got "<odd>" in '.*tokenizer\.json', and 1 id differs in all: take a teacher/);
      return true;
    });
  },
);

it(
  "a run with a teacher refuses by name what it is not combined with, and a teacher of other tokens",
  TIMEOUT,
  async () => {
    const without = flags("refused").filter((_, i, all) => all[i] !== "--teacher" && all[i - 1] !== "--teacher");
    const config: Record<string, unknown> = JSON.parse(
      readFileSync(fixture("distillation/teacher/config.json"), "utf8"),
    );
    const other = folder.write("other/config.json", JSON.stringify({ ...config, vocab_size: 77 })).replace(
      "/config.json",
      "",
    );
    const cases: readonly (readonly [argv: readonly string[], expected: RegExp])[] = [
      [[...without, "--distill-beta", "0.5"], /distillBeta: expected teacher to be set too, got 0\.5 without it/],
      [flags("refused", "--pp-size", "2"), /ppSize: expected 1 with teacher, .*, got 2/],
      [flags("refused", "--ep-size", "2"), /epSize: expected 1 with teacher, .*, got 2/],
      [
        [...without, "--teacher", other],
        /teacher: expected a model of \d+ tokens, .*, got 77 in '.*other': both need one tokenizer/,
      ],
    ];
    for (const [argv, expected] of cases) {
      await assert.rejects(trains(argv), (error: Error) => {
        assert.match(error.message, expected);
        return true;
      });
    }
  },
);

plainTest("divergence() has the slopes that differences show, and is 0 of equal probabilities", async () => {
  const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
  const { math } = device;
  const teacher = [0.5, 0.2, 0.1].map(Math.log);
  const model = [0.3, 0.05, 0.4].map(Math.log);
  for (const hasOthers of [true, false]) {
    for (const beta of [0, 0.3, 0.5, 1]) {
      const of = (own: readonly number[], slopes: number[] = []): number =>
        divergence({ model: own, teacher, hasOthers }, { beta }, slopes, math);
      const slopes: number[] = [];
      of(model, slopes);
      for (const [i, slope] of slopes.entries()) {
        const moved = (by: number): number => of(model.map((value, j) => j === i ? value + by : value));
        const measured = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        assert.ok(Math.abs(slope - measured) < 1e-8, `β ${beta}, token ${i}: ${slope}, not ${measured}`);
      }
      assert.ok(Math.abs(of(teacher)) < 1e-15);
    }
  }
  device.dispose();
});

plainTest("largest() finds the places of the largest numbers, the first among equals", () => {
  const list = Array.from({ length: 200 }, (_, i) => (i * 7919) % 61);
  for (const k of [1, 5, 64, 199, 200, 300]) {
    const sorted = list.map((_, i) => i).sort((a, b) => (list[b] ?? 0) - (list[a] ?? 0) || a - b);
    assert.deepEqual(largest(list, k), sorted.slice(0, k).sort((a, b) => a - b));
  }
});
