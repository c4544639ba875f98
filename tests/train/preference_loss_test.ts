/** Losses of pairs: their slopes against central differences, and their values where these are known. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { ODDS_RATIO, PAIR_LOSSES, pairLoss, type PairLossName } from "../../src/train/preference_loss.ts";

const { math } = await openDevice("cpu", { memoryBytes: 2 ** 24 });
const STEP = 1e-5;

test("pairLoss() has the slopes of its values, for every loss, label smoothing and kind of pair", () => {
  let checked = 0;
  for (const lossType of [...PAIR_LOSSES, ODDS_RATIO] as const) {
    for (const labelSmoothing of lossType === "robust" ? [0, 0.2] : [0]) {
      for (const [chosen, rejected] of [[-12, -30], [-30, -12], [-20.5, -20], [-700, -3], [-3, -700]] as const) {
        for (const beta of [0.1, 0.7]) {
          const settings = { lossType, beta, labelSmoothing };
          const hasReference = lossType !== ODDS_RATIO;
          const at = (up: number, down: number): ReturnType<typeof pairLoss> =>
            pairLoss(
              settings,
              { logProb: chosen + up, reference: hasReference ? -21 : 0, tokens: 3 },
              { logProb: rejected + down, reference: hasReference ? -19 : 0, tokens: 7 },
              math,
            );
          const { loss, ...slopes } = at(0, 0);
          const expected = {
            chosen: (at(STEP, 0).loss - at(-STEP, 0).loss) / (2 * STEP),
            rejected: (at(0, STEP).loss - at(0, -STEP).loss) / (2 * STEP),
          };
          const what = `${JSON.stringify(settings)} of ${chosen} and ${rejected}`;
          assert.ok(Number.isFinite(loss), what);
          for (const which of ["chosen", "rejected"] as const) {
            const allowed = 1e-7 * Math.max(1, Math.abs(loss));
            assert.ok(
              Math.abs(slopes[which] - expected[which]) <= allowed,
              `${which}, ${what}: ${slopes[which]}, not ${expected[which]}`,
            );
            checked++;
          }
        }
      }
    }
  }
  assert.equal(checked, (PAIR_LOSSES.length + 2) * 5 * 2 * 2);
});

test("pairLoss() of a model that is its reference begins at the losses that the papers give", () => {
  const same = { logProb: -5, reference: -5, tokens: 2 };
  const at = (lossType: PairLossName, labelSmoothing = 0): number =>
    pairLoss({ lossType, beta: 0.1, labelSmoothing }, same, same, math).loss;
  assert.equal(at("sigmoid"), Math.LN2);
  assert.equal(at("sigmoid_norm"), Math.LN2);
  assert.equal(at("hinge"), 1);
  assert.equal(at("ipo"), 25);
  assert.ok(Math.abs(at("robust", 0.2) - Math.LN2) < 1e-15);
});

test("pairLoss() of odds ratios is finite for answers that are certain, or that float64 cannot tell from impossible", () => {
  const settings = { lossType: ODDS_RATIO, beta: 0.1, labelSmoothing: 0 } as const;
  const answer = (logProb: number) => ({ logProb, reference: 0, tokens: 4 });
  for (const [chosen, rejected] of [[0, 0], [0, -3], [-3, 0], [-1e4, -1e4], [-1e4, 0], [-1e-9, -1e-9]] as const) {
    const { loss, ...slopes } = pairLoss(settings, answer(chosen), answer(rejected), math);
    const what = `${chosen} and ${rejected}: ${loss}, ${slopes.chosen}, ${slopes.rejected}`;
    assert.ok([loss, slopes.chosen, slopes.rejected].every(Number.isFinite), what);
    assert.ok(loss >= 0 && slopes.chosen <= 0 && slopes.rejected >= 0, what);
  }
  const even = pairLoss(settings, answer(-2), answer(-2), math).loss;
  assert.ok(Math.abs(even - 0.1 * Math.LN2) < 1e-15, String(even));
});
