/** Losses of pairs: their slopes against central differences, and their values where these are known. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { PAIR_LOSSES, pairLoss, type PairLossName } from "../../src/train/preference_loss.ts";

const { math } = await openDevice("cpu", { memoryBytes: 2 ** 24 });
const STEP = 1e-5;

test("pairLoss() has the slopes of its values, for every loss, label smoothing and kind of pair", () => {
  let checked = 0;
  for (const lossType of PAIR_LOSSES) {
    for (const labelSmoothing of lossType === "robust" ? [0, 0.2] : [0]) {
      for (const [chosen, rejected] of [[-12, -30], [-30, -12], [-20.5, -20], [-700, -3], [-3, -700]] as const) {
        for (const beta of [0.1, 0.7]) {
          const settings = { lossType, beta, labelSmoothing };
          const at = (up: number, down: number): ReturnType<typeof pairLoss> =>
            pairLoss(
              settings,
              { logProb: chosen + up, reference: -21, tokens: 3 },
              { logProb: rejected + down, reference: -19, tokens: 7 },
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
  assert.equal(checked, (PAIR_LOSSES.length + 1) * 5 * 2 * 2);
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
