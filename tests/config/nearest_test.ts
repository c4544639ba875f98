/**
 * Suggestions for mistyped names.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { nearestName } from "../../src/config/nearest.ts";

const known = ["learning-rate", "steps", "seed", "out"];

test("nearestName() finds a name with one or two letters wrong, missing, added or swapped", () => {
  for (
    const [typed, meant] of [["learning-rte", "learning-rate"], ["setps", "steps"], ["seeed", "seed"], [
      "Steps",
      "steps",
    ]]
  ) {
    assert.equal(nearestName(typed ?? "", known), meant);
  }
});

test("nearestName() suggests nothing for a name like no other", () => {
  assert.equal(nearestName("checkpoint", known), undefined);
  assert.equal(nearestName("x", known), undefined);
  assert.equal(nearestName("steps", []), undefined);
});
