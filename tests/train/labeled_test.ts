/** Runs by Kahneman-Tversky optimization: TRL's numbers, the same bits however they are divided, and what is refused. @module */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { z } from "zod";
import { sharedTest as test, usualFirst } from "../support/share.ts";
import { figures, fixture, fixtureJson, lines, PreferenceRuns } from "./preference_runs.ts";

const TIMEOUT = { timeout: 120_000 };
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
}).parse(fixtureJson("preference/kto.json"));

const runs = new PreferenceRuns("kto", maxLength);
after(() => runs[Symbol.dispose]());
const { folder } = runs;
const data = folder.write("rows.jsonl", lines(ROWS));
const held = folder.write("held.jsonl", lines(HELD));

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
      await runs.trains(runs.flagsOn(data, `trl-${name}`, "--global-batch", String(ROWS.length), ...own));
      runs.requireMeasured(`trl-${name}`, expected);
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
    const metrics = await runs.requireSameBits(folder.write("answers.jsonl", UNEQUAL));
    assert.match(metrics.at(-1) ?? "", /"kl":(?!0,)/);
    assert.match(metrics[1] ?? "", /"eval_loss":.*"eval_kl":/);
  },
);

test("a run on answers with labels has one rank's numbers over axes", TIMEOUT, async () => {
  await runs.requireNearOverAxes(
    folder.write("answers.jsonl", UNEQUAL),
    usualFirst([[["--cp-size", "2"], 2], [["--tp-size", "2", "--fsdp-size", "2"], 4]] as const, (place) => place === 0),
  );
});

it("a run on answers with labels refuses by name what the other losses have, and rows without a label", async () => {
  const empty = folder.write("empty.jsonl", `${lines(ROWS.slice(0, 1))}{"prompt": "a", "completion": "b"}\n`);
  const as = (...more: readonly string[]): readonly string[] => runs.flagsOn(data, "refused", ...more);
  const cases: readonly (readonly [argv: readonly string[], expected: RegExp])[] = [
    [as("--loss-type", "ipo"), /lossType: expected one of kto, apo_zero_unpaired with preference 'kto', got 'ipo'/],
    [as("--label-smoothing", "0.1"), /labelSmoothing: expected lossType 'robust' to be set too/],
    [as("--global-batch", "1"), /globalBatch: expected at least 2 with preference 'kto'/],
    [as("--streaming"), /streaming: expected false with preference 'kto', whose reference reads all data/],
    [
      as("--preference", "dpo", "--desirable-weight", "2"),
      /desirableWeight: expected preference 'kto' to be set too, got 2 without it/,
    ],
    [
      as("--preference", "dpo", "--loss-type", "kto"),
      /lossType: expected one of sigmoid, .* with preference 'dpo', got 'kto'/,
    ],
    [runs.flagsOn(empty, "refused"), /empty\.jsonl:2: data: expected the columns "prompt", "completion" and "label"/],
  ];
  for (const [argv, expected] of cases) {
    await assert.rejects(runs.trains(argv), (error: Error) => {
      assert.match(error.message, expected);
      return true;
    });
  }
});
