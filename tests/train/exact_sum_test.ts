/** Sums without rounding, against sums of BigInt fractions. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ExactSum, totalOf } from "../../src/train/exact_sum.ts";

/** Float32 numbers of every size, from few to many, subnormal ones and zeros among them. */
function numbers(count: number): number[] {
  const word = new Float32Array(1);
  const bits = new Uint32Array(word.buffer);
  return Array.from({ length: count }, (_, i) => {
    bits[0] = Math.imul(i * 2 + 1, 0x9e3779b1) >>> 1;
    const [value = NaN] = word;
    return Number.isFinite(value) ? value : 0;
  });
}

/** A float32 in units of 2^-149, where it is a whole number. */
function units(value: number): bigint {
  const [high, rest] = [Math.floor(value), value - Math.floor(value)];
  return (BigInt(high) << 149n) + BigInt(rest * 2 ** 149);
}

function sumOf(values: readonly number[]): string {
  const sum = new ExactSum();
  for (const value of values) sum.add(value);
  return String(sum);
}

describe("ExactSum", () => {
  const values = numbers(2000);
  const expected = values.reduce((total, value) => total + units(value), 0n);

  it("adds every float32 exactly, in any order and over any number of ranks", () => {
    assert.equal(sumOf(values), String(expected));
    assert.equal(sumOf(values.toReversed()), String(expected));
    for (const ranks of [1, 2, 3, 7]) {
      const parts = Array.from({ length: ranks }, (_, rank) => sumOf(values.filter((_, i) => i % ranks === rank)));
      assert.equal(totalOf(parts), Number(expected) * 2 ** -149);
    }
    assert.equal(totalOf([sumOf([0.5, 0.25]), sumOf([2 ** -149, -0, 0]), sumOf([])]), 0.75);
    assert.equal(totalOf([sumOf([2 ** -149, 2 ** -149])]), 2 ** -148);
  });

  it("is NaN where a number is not finite or below 0", () => {
    for (const wrong of [NaN, Infinity, -1]) assert.ok(Number.isNaN(totalOf([sumOf([1, wrong]), sumOf([1])])));
  });
});
