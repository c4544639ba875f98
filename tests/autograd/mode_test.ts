/**
 * Scopes in which no gradients are recorded.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { gradEnabled, noGrad } from "../../src/autograd/mode.ts";

test("noGrad() refuses an asynchronous function, during whose waits other code would record nothing", () => {
  assert.throws(() => noGrad(async () => await Promise.resolve(1)), /async/);
  assert.ok(gradEnabled());
});
