/** Runs by Kahneman-Tversky optimization: TRL's numbers, the same bits however they are divided, and what is refused. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { Logger, resolveConfig, runTraining, TRAIN_SECTIONS } from "../../doors/config.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, metricLines, run } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const figures = z.record(z.string(), z.number());
const rows = z.array(z.record(z.string(), z.unknown()));
const { rows: ROWS, held: HELD, maxLength, runs: RUNS } = z.object({
  rows,
  held: rows,
  maxLength: z.number(),
  runs: z.record(
    z.string(),
    z.object({
      options: z.object({
        steps: z.number(),
        learning_rate: z.number(),
        adapter: z.boolean(),
        beta: z.number().optional(),
        loss_type: z.string().optional(),
        desirable_weight: z.number().optional(),
        undesirable_weight: z.number().optional(),
      }),
      losses: z.array(z.number()),
      figures: z.array(figures),
      held: figures,
    }),
  ),
}).parse(JSON.parse(readFileSync(fixture("preference/kto.json"), "utf8")));
const lines = (rows: readonly unknown[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join("");

const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const data = folder.write("rows.jsonl", lines(ROWS));
const held = folder.write("held.jsonl", lines(HELD));

/** Flags of a run on a file. */
function flagsOn(file: string, out: string, ...more: readonly string[]): readonly string[] {
  return [
    ...["--preference", "kto", "--model", fixture("preference/model"), "--data", file],
    ...["--tokenizer", fixture("chat/bytes"), "--chat-template", fixture("chat/templates/chatml.jinja")],
    ...["--sequence-length", String(maxLength), "--global-batch", "8", "--schedule", "constant", "--warmup-steps", "0"],
    ...["--weight-decay", "0", "--sample-tokens", "0", "--learning-rate", "0.01", "--cpu-math", "wasm"],
    ...["--cache", folder.file("cache"), "--out", folder.file(out), ...more],
  ];
}

/** Runs a training in this process, as one rank. */
async function trains(argv: readonly string[]): Promise<void> {
  const config = await resolveConfig(TRAIN_SECTIONS, { argv });
  const log = new Logger({ sink: () => {} });
  await runTraining(config, { log, output: { line: () => undefined, status: undefined } });
}

function succeeds(ended: Ended): void {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
}

function near(found: number | undefined, expected: number, what: string): void {
  const difference = Math.abs((found ?? NaN) - expected);
  assert.ok(difference <= 1e-4 * Math.max(1, Math.abs(expected)), `${what}: ${found}, not ${expected}`);
}

describe("runTraining() on answers with labels has the losses and figures of TRL's KTOTrainer", () => {
  const cases = Object.entries(RUNS);
  const usual = ["kto", "weights"];
  for (const [name, expected] of usualFirst(cases, (place) => usual.includes(cases[place]?.[0] ?? ""))) {
    it(name, TIMEOUT, async () => {
      const { steps, learning_rate: rate, adapter, beta, loss_type: lossType, ...weights } = expected.options;
      const own = ["--eval-data", held, "--steps", String(steps), "--learning-rate", String(rate)];
      if (adapter) own.push("--adapter", fixture("preference/adapter"));
      if (beta !== undefined) own.push("--beta", String(beta));
      if (lossType !== undefined) own.push("--loss-type", lossType);
      if (weights.desirable_weight !== undefined) own.push("--desirable-weight", String(weights.desirable_weight));
      if (weights.undesirable_weight !== undefined) {
        own.push("--undesirable-weight", String(weights.undesirable_weight));
      }
      await trains(flagsOn(data, `trl-${name}`, "--global-batch", String(ROWS.length), ...own));
      const found = metricLines(folder, `trl-${name}`).map((line) => figures.parse(JSON.parse(line)));
      assert.equal(found.length, expected.losses.length);
      for (const [i, line] of found.entries()) {
        near(line["loss"], expected.losses[i] ?? NaN, `loss of step ${i + 1}`);
        for (const [figure, value] of Object.entries(expected.figures[i] ?? assert.fail())) {
          near(line[figure], value, `${figure} of step ${i + 1}`);
        }
      }
      for (const [figure, value] of Object.entries(expected.held)) {
        near(found.at(-1)?.[`eval_${figure}`], value, `eval_${figure}`);
      }
    });
  }
});

/** Twelve answers whose lengths differ much. */
const UNEQUAL = lines(Array.from({ length: 12 }, (_, i) => ({
  prompt: `Question ${i}${"?".repeat(i % 5)}`,
  completion: ` ${"good".repeat(1 + i % 3)}${"b".repeat(i * 3)}`,
  label: i % 3 > 0,
})));

test(
  "a run on answers with labels gives the same bits sharded, replicated, on one rank, and resumed",
  TIMEOUT,
  async () => {
    const answers = folder.write("answers.jsonl", UNEQUAL);
    const flags = (out: string, ...more: readonly string[]): readonly string[] =>
      flagsOn(answers, out, "--steps", "4", "--eval-data", answers, "--eval-every", "2", ...more);
    succeeds(await run(flags("fsdp")));
    const whole = metricLines(folder, "fsdp").map(essence);
    const held = (out: string): unknown => metricLines(folder, out).map((line) => line.replace(/^.*?(?="eval_|$)/, ""));
    assert.equal(whole.length, 4);
    assert.match(whole.at(-1) ?? "", /"kl":(?!0,)/);
    assert.match(metricLines(folder, "fsdp")[1] ?? "", /"eval_loss":.*"eval_kl":/);
    await trains(flags("alone", "--micro-batches", "2"));
    assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
    assert.deepEqual(held("alone"), held("fsdp"));
    for (const strategy of onlyInAll(["ddp"])) {
      succeeds(await run(flags("ddp", "--strategy", strategy)));
      assert.deepEqual(metricLines(folder, "ddp").map(essence), whole);
    }
    // Step 3 is in the middle of an epoch.
    await trains(flags("half", "--stop-after", "3", "--micro-batches", "2"));
    await trains(flags("half", "--resume", "auto", "--micro-batches", "2"));
    assert.deepEqual(metricLines(folder, "half").map(essence), whole);
    for (const ranks of onlyInAll([4])) {
      succeeds(await run(flags("four"), { ranks }));
      await trains(flags("four-alone", "--micro-batches", "4"));
      assert.deepEqual(metricLines(folder, "four").map(essence), metricLines(folder, "four-alone").map(essence));
    }
  },
);

it("a run on answers with labels refuses by name what the other losses have, and rows without a label", async () => {
  const empty = folder.write("empty.jsonl", `${lines(ROWS.slice(0, 1))}{"prompt": "a", "completion": "b"}\n`);
  const as = (...more: readonly string[]): readonly string[] => flagsOn(data, "refused", ...more);
  const cases: readonly (readonly [argv: readonly string[], expected: RegExp])[] = [
    [as("--loss-type", "ipo"), /lossType: expected one of kto, apo_zero_unpaired with preference 'kto', got 'ipo'/],
    [as("--label-smoothing", "0.1"), /labelSmoothing: expected lossType 'robust' with it/],
    [as("--global-batch", "1"), /globalBatch: expected at least 2 with preference 'kto'/],
    [as("--streaming"), /streaming: expected false with preference 'kto', whose reference reads all data/],
    [
      as("--preference", "dpo", "--desirable-weight", "2"),
      /desirableWeight: expected preference 'kto' with it, got 2 and 'dpo'/,
    ],
    [
      as("--preference", "dpo", "--loss-type", "kto"),
      /lossType: expected one of sigmoid, .* with preference 'dpo', got 'kto'/,
    ],
    [flagsOn(empty, "refused"), /empty\.jsonl:2: data: expected the columns "prompt", "completion" and "label"/],
  ];
  for (const [argv, expected] of cases) {
    await assert.rejects(trains(argv), (error: Error) => {
      assert.match(error.message, expected);
      return true;
    });
  }
});
