/** Causal depthwise convolution against plain loops: values and gradients, in every layout. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { causalConv } from "../../src/nn/functional.ts";
import { zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { gradcheck, gradcheckLayouts } from "../support/gradcheck.ts";
import { at, build, type Nd, random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

function reference(x: Nd, w: Nd): Nd {
  const width = w.shape[2] ?? 0;
  return build(x.shape, ([b = 0, t = 0, c = 0]) => {
    let sum = 0;
    for (let k = 0; k < width; k++) {
      const from = t + k + 1 - width;
      if (from >= 0) sum += at(w, [c, 0, k]) * at(x, [b, from, c]);
    }
    return sum;
  });
}

test("causalConv(): value and gradient, with sequences shorter and longer than the weights", () => {
  for (const [seq, width] of [[5, 3], [2, 4], [4, 1]] as const) {
    const shapes = [[2, seq, 3], [3, 1, width]];
    gradcheckLayouts(device, { label: `${seq} by ${width}`, run: causalConv, reference }, shapes);
  }
  const inputs = [random([2, 4, 5], 1), random([5, 1, 3], 2)];
  gradcheck(device, { label: "bf16", inputs, run: causalConv, reference, dtype: bfloat16 });
});

test("causalConv() refuses shapes and dtypes that do not fit", () => {
  using _frame = scope();
  const x = zeros(device, [1, 4, 3]);
  assert.throws(() => causalConv(x, zeros(device, [2, 1, 3])), /x must be \[batch, seq, channels\] and the weight/);
  assert.throws(() => causalConv(x, zeros(device, [3, 2, 3])), ShapeError);
  assert.throws(() => causalConv(x, zeros(device, [3, 1, 65])), ShapeError);
  assert.throws(() => causalConv(zeros(device, [4, 3]), zeros(device, [3, 1, 2])), ShapeError);
  assert.throws(() => causalConv(x, zeros(device, [3, 1, 2], bfloat16)), DTypeError);
});
