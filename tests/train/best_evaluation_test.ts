/** Which evaluation is the best, and when evaluations end a run: case by case as `EarlyStoppingCallback` of transformers decides. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ConfigError } from "../../src/errors.ts";
import { BestEvaluation, metricOf } from "../../src/train/best_evaluation.ts";
import { type EvaluationConfig, requireEvaluations } from "../../src/train/evaluation_config.ts";

const NONE: EvaluationConfig = { evalEvery: 0, loadBestModelAtEnd: false, earlyStoppingThreshold: 0 };

/** For each value, whether it is best (`*`) and whether the run ends (`!`). */
function verdicts(metric: string, config: Partial<EvaluationConfig>, values: readonly (number | undefined)[]): string {
  const best = new BestEvaluation(metric, { ...NONE, ...config });
  return values.map((value, i) => {
    const { isBest, ends } = best.take(i + 1, value);
    return `${isBest ? "*" : "-"}${ends ? "!" : ""}`;
  }).join(" ");
}

test("BestEvaluation takes less of a loss and more of an accuracy as better, unless it is told otherwise", () => {
  assert.equal(verdicts("eval_loss", {}, [3, 2, 2, 1, 4]), "* * - * -");
  assert.equal(verdicts("eval_perplexity", {}, [3, 2, 4]), "* * -");
  assert.equal(verdicts("eval_mean_token_accuracy", {}, [0.1, 0.3, 0.2]), "* * -");
  assert.equal(verdicts("eval_loss", { greaterIsBetter: true }, [3, 2, 4]), "* - *");
});

test("BestEvaluation ends after patience evaluations in turn without enough gain", () => {
  assert.equal(verdicts("eval_loss", { earlyStoppingPatience: 2 }, [3, 3, 2, 2.5, 2, 1]), "* - * - -! *");
  // A gain below the threshold is the best so far, but does not count.
  const small = { earlyStoppingPatience: 2, earlyStoppingThreshold: 0.5 };
  assert.equal(verdicts("eval_loss", small, [3, 2.8, 2.2, 2.1]), "* * * *");
  assert.equal(verdicts("eval_loss", small, [3, 2.8, 2.7, 2]), "* * *! *");
  assert.equal(verdicts("eval_loss", { earlyStoppingPatience: 1 }, [NaN, 3, undefined]), "-! * -!");
});

test("BestEvaluation goes on from a checkpoint's state, with its counter and its checkpoint", () => {
  const first = new BestEvaluation("eval_loss", { ...NONE, earlyStoppingPatience: 2 });
  first.take(10, 2);
  first.noteCheckpoint(10, "checkpoint-10");
  first.take(20, 3);
  first.noteCheckpoint(20, "checkpoint-20");
  const { state = assert.fail() } = first;
  assert.deepEqual(state, {
    metric: "eval_loss",
    best_metric: 2,
    best_global_step: 10,
    best_model_checkpoint: "checkpoint-10",
    evaluations_without_gain: 1,
  });
  const second = new BestEvaluation("eval_loss", { ...NONE, earlyStoppingPatience: 2 });
  second.restore(JSON.parse(JSON.stringify(state)));
  assert.deepEqual(second.take(30, 2.5), { isBest: false, ends: true });
  const other = new BestEvaluation("eval_a_loss", NONE);
  other.restore(state);
  assert.equal(other.state, undefined);
});

test("metricOf() finds the figure with and without its prefix, and the only loss there is", () => {
  const one = ["eval_loss", "eval_perplexity"];
  assert.equal(metricOf(undefined, one), "eval_loss");
  assert.equal(metricOf("perplexity", one), "eval_perplexity");
  assert.equal(metricOf("eval_perplexity", one), "eval_perplexity");
  assert.equal(metricOf(undefined, ["eval_a_loss", "eval_a_perplexity"]), "eval_a_loss");
  assert.equal(metricOf(undefined, ["eval_a_loss", "eval_b_loss"]), undefined);
  assert.throws(() => metricOf("bleu", one), /metricForBestModel: expected one of loss, perplexity, got 'bleu'/);
});

test("requireEvaluations() refuses settings without those that they need", () => {
  const evalData = ["a.txt"];
  const wrong = [
    [{ evalEvery: 3, evalData: [] }, /evalData: expected files for evalEvery to evaluate on, got nothing/],
    [{ loadBestModelAtEnd: true, evalData: [] }, /evalData: expected files for loadBestModelAtEnd/],
    [{ evalStrategy: "steps" }, /evalEvery: expected at least 1 with evalStrategy 'steps', got 0/],
    [{ evalStrategy: "epoch", evalEvery: 3 }, /evalEvery: expected 0 with evalStrategy 'epoch', got 3/],
    [{ evalStrategy: "no", loadBestModelAtEnd: true }, /evalStrategy: expected 'steps' or 'epoch'.*got 'no'/],
    [{ earlyStoppingThreshold: 0.1 }, /earlyStoppingThreshold: expected earlyStoppingPatience to be set too/],
  ] as const;
  for (const [config, message] of wrong) {
    assert.throws(
      () => requireEvaluations({ ...NONE, evalData, ...config }),
      (error) => error instanceof ConfigError && message.test(error.message),
      String(message),
    );
  }
  requireEvaluations({ ...NONE, evalData: [] });
  requireEvaluations({
    ...NONE,
    evalData,
    evalStrategy: "epoch",
    earlyStoppingPatience: 2,
    earlyStoppingThreshold: 0.1,
  });
});
