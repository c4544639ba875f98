/**
 * Initial values, which follow from a seed and a parameter's name.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { keyOf } from "../../doors/testing.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });

test("initializeParameters() of a part keeps the names that the whole gave", () => {
  class Whole extends Module<[], void> {
    readonly left: Linear = new Linear(device, 3, 3, { bias: false });
    readonly right: Linear = new Linear(device, 3, 3, { bias: false });
    forward(): void {}
  }
  const [whole, parts] = [new Whole(), new Whole()];
  initializeParameters(whole, 5);
  initializeParameters(parts, 0);
  for (const part of [parts.left, parts.right]) initializeParameters(part, 5);
  assert.deepEqual([parts.left.weight.fqn, parts.right.weight.fqn], ["left.weight", "right.weight"]);
  assert.deepEqual(parts.left.weight.toArray(), whole.left.weight.toArray());
  assert.deepEqual(parts.right.weight.toArray(), whole.right.weight.toArray());
  assert.notDeepEqual(parts.left.weight.toArray(), parts.right.weight.toArray());
  assert.equal(parts.left.weight.buffer.owner, "left.weight");
  assert.ok(keyOf(5, "left.weight") !== keyOf(5, "right.weight"));
});
