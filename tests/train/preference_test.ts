/** Runs that learn preferences: TRL's numbers, the same bits however they are divided, and what is refused. @module */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { z } from "zod";
import { longTest, onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { figures, fixture, fixtureJson, lines, PreferenceRuns, succeeds } from "./preference_runs.ts";
import { essence, metricLines } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const { rows: ROWS, held: HELD, maxLength, runs: RUNS } = z.object({
  rows: z.array(z.record(z.string(), z.unknown())),
  held: z.array(z.record(z.string(), z.unknown())),
  maxLength: z.number(),
  runs: z.record(
    z.string(),
    z.object({
      options: z.object({
        steps: z.number(),
        learning_rate: z.number(),
        adapter: z.boolean(),
        beta: z.number().optional(),
        loss_type: z.array(z.string()).optional(),
        label_smoothing: z.number().optional(),
      }),
      losses: z.array(z.number()),
      figures: z.array(figures),
      held: figures,
    }),
  ),
}).parse(fixtureJson("preference/expected.json"));

const runs = new PreferenceRuns("dpo", maxLength);
after(() => runs[Symbol.dispose]());
const { folder, run } = runs;
const data = folder.write("rows.jsonl", lines(ROWS));
const held = folder.write("held.jsonl", lines(HELD));

/** Flags of a run on the fixture's rows. */
function flagsIn(out: string, ...more: readonly string[]): readonly string[] {
  return runs.flagsOn(data, out, ...more);
}

/** A line of metrics as an object. */
function parsed(line: string): Readonly<Record<string, number>> {
  return figures.parse(JSON.parse(line));
}

describe("runTraining() on preferences has the losses, rewards and log-probabilities of TRL's DPOTrainer", () => {
  const few = ["sigmoid", "adapter", "ipo", "robust"];
  const cases = Object.entries(RUNS);
  for (const [name, expected] of usualFirst(cases, (place) => few.includes(cases[place]?.[0] ?? ""))) {
    it(name, TIMEOUT, async () => {
      const { steps, learning_rate: rate, adapter, beta, loss_type: lossType, label_smoothing: smoothing } =
        expected.options;
      const argv = flagsIn(
        `trl-${name}`,
        "--eval-data",
        held,
        "--steps",
        String(steps),
        "--learning-rate",
        String(rate),
      );
      const given = { beta, "loss-type": lossType?.[0], "label-smoothing": smoothing };
      const own = Object.entries(given).flatMap(([flag, value]) =>
        value === undefined ? [] : [`--${flag}`, String(value)]
      );
      if (adapter) own.push("--adapter", fixture("preference/adapter"));
      await runs.trains([...argv, ...own]);
      runs.requireMeasured(`trl-${name}`, expected);
    });
  }
});

/** Twelve pairs whose lengths differ much. */
const UNEQUAL = lines(Array.from({ length: 12 }, (_, i) => ({
  prompt: `Question ${i}${"?".repeat(i % 5)}`,
  chosen: ` ${"good".repeat(1 + i % 3)}`,
  rejected: ` ${"b".repeat(1 + i * 3)}`,
})));

longTest(
  "a run on preferences gives the same bits sharded, replicated, on one rank, and resumed on another number",
  TIMEOUT,
  async () => {
    const pairs = folder.write("pairs.jsonl", UNEQUAL);
    const flags = (out: string, ...more: readonly string[]): readonly string[] =>
      runs.flagsOn(
        pairs,
        out,
        "--eval-data",
        pairs,
        "--eval-every",
        "2",
        "--steps",
        "5",
        "--global-batch",
        "8",
        ...more,
      );
    const first = succeeds(await run(flags("fsdp")));
    assert.match(
      first.stderr,
      /12 pairs of answers of at most 96 tokens, \d+ in all, .* trained on: an epoch is 2 steps/,
    );
    const whole = metricLines(folder, "fsdp").map(essence);
    const held = (out: string): unknown => metricLines(folder, out).map((line) => line.replace(/^.*?(?="eval_|$)/, ""));
    assert.equal(whole.length, 5);
    assert.match(
      metricLines(folder, "fsdp")[1] ?? "",
      /"eval_loss":.*"eval_rewards\/accuracies":.*"eval_logps\/rejected":/,
    );
    succeeds(await run(flags("ddp", "--strategy", "ddp")));
    assert.deepEqual(metricLines(folder, "ddp").map(essence), whole);
    await runs.trains(flags("alone", "--micro-batches", "2"));
    assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
    assert.deepEqual(held("alone"), held("fsdp"));
    // Step 3 is in the middle of an epoch; the reference is measured again, from the weights that the run began with.
    succeeds(await run(flags("half", "--stop-after", "3")));
    const resumed = await runs.trains(flags("half", "--resume", "auto", "--micro-batches", "2"));
    assert.match(resumed, /Resumed '.*half\/checkpoint-3' at step 3/);
    assert.doesNotMatch(resumed, /Setting changed since/);
    assert.deepEqual(metricLines(folder, "half").map(essence), whole);
    const other = await runs.trains(flags("half", "--resume", "auto", "--steps", "6", "--beta", "0.3"));
    assert.match(other, /Setting changed since the checkpoint: beta was 0\.1, is 0\.3/);
    for (const ranks of onlyInAll([4])) {
      succeeds(await run(flags("four"), { ranks }));
      await runs.trains(flags("four-alone", "--micro-batches", "4"));
      assert.deepEqual(metricLines(folder, "four").map(essence), metricLines(folder, "four-alone").map(essence));
    }
  },
);

test(
  "a run on preferences has one rank's numbers over axes that divide vocabulary and positions",
  TIMEOUT,
  async () => {
    const pairs = folder.write("pairs.jsonl", UNEQUAL);
    const lora = ["--lora-r", "4", "--activation-checkpointing", "full"];
    await runs.requireNearOverAxes(
      pairs,
      usualFirst(
        [
          [["--tp-size", "2"], 2],
          [["--cp-size", "2"], 2],
          [["--cp-size", "2", "--fsdp-size", "2"], 4],
          [["--tp-size", "2", "--fsdp-size", "2", "--enable-sequence-parallel"], 4],
          [["--tp-size", "2", "--cp-size", "2", "--strategy", "ddp"], 4],
        ] as const,
        (place) => place === 0,
      ),
    );
    for (const [i, axes] of onlyInAll([["--tp-size", "2"], ["--cp-size", "2"]]).entries()) {
      succeeds(await run(flagsIn(`lora-axes-${i}`, ...lora, "--steps", "2", ...axes)));
      const [first = ""] = metricLines(folder, `lora-axes-${i}`);
      assert.ok(Math.abs((parsed(first)["loss"] ?? NaN) - Math.LN2) < 1e-6, first);
    }
  },
);

longTest(
  "the reference of a new adapter is the model without it, in each step or measured before",
  TIMEOUT,
  async () => {
    const lora = ["--lora-r", "4", "--lora-alpha", "16", "--steps", "4", "--eval-data", held, "--eval-every", "2"];
    succeeds(await run(flagsIn("lora", ...lora)));
    const whole = metricLines(folder, "lora").map(essence);
    const first = parsed(metricLines(folder, "lora")[0] ?? "");
    assert.equal(first["loss"], Math.LN2);
    assert.equal(first["rewards/margins"], 0);
    assert.ok((parsed(metricLines(folder, "lora")[3] ?? "")["rewards/margins"] ?? NaN) > 0.1);
    await runs.trains(flagsIn("before", ...lora, "--precompute-ref-log-probs", "--micro-batches", "2"));
    assert.deepEqual(metricLines(folder, "before").map(essence), whole);
    await runs.trains(flagsIn("lora-alone", ...lora, "--activation-checkpointing", "full", "--micro-batches", "2"));
    assert.deepEqual(metricLines(folder, "lora-alone").map(essence), whole);
    for (const strategy of onlyInAll(["ddp"])) {
      succeeds(await run(flagsIn("replicated", ...lora, "--strategy", strategy)));
      assert.deepEqual(metricLines(folder, "replicated").map(essence), whole);
    }
  },
);

test(
  "a run on preferences refuses by name what it is not combined with, and rows that are none by line",
  TIMEOUT,
  async () => {
    const bad = folder.write("bad.jsonl", `${lines(ROWS.slice(0, 2))}{"prompt": "a", "chosen": "b"}\n`);
    const text = folder.write("text.txt", "no rows at all");
    const as = (...more: readonly string[]): readonly string[] => flagsIn("refused", ...more);
    const withoutPreference = as().slice(2);
    const cases: readonly (readonly [argv: readonly string[], expected: RegExp])[] = [
      [
        as("--packing", "bfd", "--lora-r", "2", "--lora-dropout", "0.1", "--cuda-graphs", "--neftune-noise-alpha", "5"),
        /packing: expected 'none' with preference, .*\n.*loraDropout: expected 0 with preference, .*\n.*neftuneNoiseAlpha: expected nothing .*\n.*cudaGraphs: expected false/,
      ],
      [as("--pp-size", "2"), /ppSize: expected 1 with preference, .*, got 2/],
      [as("--loss-on", "all"), /lossOn: expected nothing with preference, whose loss is on answers, got 'all'/],
      [as("--label-smoothing", "0.1"), /labelSmoothing: expected lossType 'robust' to be set too/],
      [as("--no-precompute-ref-log-probs"), /precomputeRefLogProbs: expected true, but for a new adapter/],
      [
        runs.flagsOn(bad, "refused"),
        /bad\.jsonl:3: data: expected the columns "chosen" and "rejected", .*, got "prompt", "chosen"/,
      ],
      [
        runs.flagsOn(text, "refused"),
        /text\.txt: data: expected rows with "chosen" and "rejected", .*, got a file of text/,
      ],
      [[...withoutPreference, "--beta", "0.2"], /beta: expected preference to be set too, got 0\.2 without it/],
      [withoutPreference, /rows\.jsonl:1: data: expected the columns .*, got a preference, .*'--preference dpo'/],
    ];
    for (const [argv, expected] of cases) {
      await assert.rejects(runs.trains(argv), (error: Error) => {
        assert.match(error.message, expected);
        return true;
      });
    }
  },
);
