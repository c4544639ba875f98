/** The suite's own measure of sums. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { bfloat16, float32, int64 } from "../../src/dtype.ts";
import { checkSum, encode, type RankSum, sumInOrder, values } from "./values.ts";

test("checkSum() wants the bits of rank order, or only what another order may change", () => {
  for (const dtype of [float32, bfloat16]) {
    const parts = [0, 1, 2].map((rank) => encode(dtype, values(1, rank, 1000)));
    const sum: RankSum = { dtype, dstDtype: dtype, parts, scale: 0.3, base: encode(dtype, values(2, 0, 1000)) };
    const inOrder = sumInOrder(sum);
    const backwards = sumInOrder({ ...sum, parts: parts.toReversed() });
    checkSum("rank-order", sum, inOrder, "same order");
    // Sums of a few bfloat16 are exact in float32, whatever their order.
    if (dtype === float32) {
      assert.throws(() => checkSum("rank-order", sum, backwards, "other order"), /other order: byte \d+ is/);
    }
    checkSum("any", sum, backwards, "other order");
    const missing = sumInOrder({ ...sum, parts: parts.slice(1) });
    assert.throws(() => checkSum("any", sum, missing, "a rank is missing"), /a rank is missing: element \d+ is/);
    assert.throws(() => checkSum("any", sum, new Uint8Array(inOrder.length).fill(255), "NaN"), /element 0 is NaN/);
  }
});

test("checkSum() wants integers exactly, whatever the order", () => {
  const parts = [0, 1].map((rank) => encode(int64, values(1, rank, 10)));
  const sum: RankSum = { dtype: int64, dstDtype: int64, parts, scale: 1 };
  const right = sumInOrder(sum);
  checkSum("any", sum, right, "exact");
  right[0] = (right[0] ?? 0) ^ 1;
  assert.throws(() => checkSum("any", sum, right, "off by one"), /off by one: byte 0/);
});
