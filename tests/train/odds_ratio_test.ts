/** Runs by odds ratio preference optimization: TRL's numbers, the same bits however they are divided, and what is refused. @module */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { z } from "zod";
import { sharedTest as test, usualFirst } from "../support/share.ts";
import { figures, fixture, fixtureJson, lines, PreferenceRuns } from "./preference_runs.ts";

const TIMEOUT = { timeout: 120_000 };
const rows = z.array(z.record(z.string(), z.unknown()));
const { rows: ROWS, held: HELD, maxLength } = z.object({ rows, held: rows, maxLength: z.number() })
  .parse(fixtureJson("preference/expected.json"));
const { runs: RUNS } = z.object({
  runs: z.record(
    z.string(),
    z.object({
      options: z.object({
        steps: z.number(),
        learning_rate: z.number(),
        adapter: z.boolean(),
        beta: z.number().optional(),
      }),
      losses: z.array(z.number()),
      figures: z.array(figures),
      held: figures,
    }),
  ),
}).parse(fixtureJson("preference/orpo.json"));

const runs = new PreferenceRuns("orpo", maxLength);
after(() => runs[Symbol.dispose]());
const { folder } = runs;
const data = folder.write("rows.jsonl", lines(ROWS));
const held = folder.write("held.jsonl", lines(HELD));

describe("runTraining() by odds ratios has the losses and figures of TRL's ORPOTrainer", () => {
  const cases = Object.entries(RUNS);
  for (const [name, expected] of usualFirst(cases, (place) => cases[place]?.[0] !== "beta")) {
    it(name, TIMEOUT, async () => {
      const { steps, learning_rate: rate, adapter, beta } = expected.options;
      const own = ["--eval-data", held, "--steps", String(steps), "--learning-rate", String(rate)];
      if (adapter) own.push("--adapter", fixture("preference/adapter"));
      if (beta !== undefined) own.push("--beta", String(beta));
      await runs.trains(runs.flagsOn(data, `trl-${name}`, ...own));
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

test("a run by odds ratios gives the same bits sharded, replicated, on one rank, and resumed", TIMEOUT, async () => {
  const metrics = await runs.requireSameBits(folder.write("pairs.jsonl", UNEQUAL));
  assert.match(metrics[1] ?? "", /"eval_loss":.*"eval_nll_loss":.*"eval_log_odds_chosen":/);
});

test("a run by odds ratios has one rank's numbers over axes", TIMEOUT, async () => {
  await runs.requireNearOverAxes(
    folder.write("pairs.jsonl", UNEQUAL),
    usualFirst([[["--cp-size", "2", "--tp-size", "2"], 4], [["--cp-size", "2"], 2]] as const, (place) => place === 0),
  );
});

it("a run by odds ratios refuses by name what the other losses have, and rows without an answer", async () => {
  const empty = folder.write("empty.jsonl", `${lines(ROWS.slice(0, 1))}{"prompt": "a", "chosen": "b"}\n`);
  const as = (...more: readonly string[]): readonly string[] => runs.flagsOn(data, "refused", ...more);
  const cases: readonly (readonly [argv: readonly string[], expected: RegExp])[] = [
    [as("--loss-type", "ipo"), /lossType: expected nothing with preference 'orpo', .*, got ipo/],
    [as("--label-smoothing", "0.1"), /labelSmoothing: expected nothing with preference 'orpo'/],
    [as("--precompute-ref-log-probs"), /precomputeRefLogProbs: expected nothing with preference 'orpo', .*, got true/],
    [as("--packing", "bfd"), /packing: expected 'none' with preference/],
    [runs.flagsOn(empty, "refused"), /empty\.jsonl:2: data: expected the columns "chosen" and "rejected"/],
  ];
  for (const [argv, expected] of cases) {
    await assert.rejects(runs.trains(argv), (error: Error) => {
      assert.match(error.message, expected);
      return true;
    });
  }
});
