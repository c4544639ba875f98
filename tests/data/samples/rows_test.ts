/** Rows of samples: those that TRL packs, how much of them is padding, and the set that finds room. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { NumberSet } from "../../../src/data/samples/number_set.ts";
import { Rows } from "../../../src/data/samples/rows.ts";

interface Case {
  readonly lengths: readonly number[];
  readonly sequenceLength: number;
  readonly bfd: readonly (readonly number[][])[];
  readonly bfd_split: readonly (readonly number[][])[];
}

const CASES: readonly Case[] = JSON.parse(
  readFileSync(new URL("../../fixtures/packing.json", import.meta.url), "utf8"),
);

function rowsOf(lengths: readonly number[], sequenceLength: number, packing: "none" | "bfd" | "bfd-split"): Rows {
  return new Rows(lengths.length, (sample) => lengths[sample] ?? NaN, sequenceLength, packing);
}

function partsOf(rows: Rows): number[][][] {
  return Array.from(
    { length: rows.numRows },
    (_, row) => rows.partsOf(row).map(({ sample, start, length }) => [sample, start, length]),
  );
}

for (const [i, { lengths, sequenceLength, ...packed }] of CASES.entries()) {
  test(`Rows are those of TRL, part for part: case ${i}`, () => {
    assert.deepEqual(partsOf(rowsOf(lengths, sequenceLength, "bfd")), packed.bfd);
    assert.deepEqual(partsOf(rowsOf(lengths, sequenceLength, "bfd-split")), packed.bfd_split);
  });
}

/** Numbers in [0, 1), the same each time. */
function* drawn(): Generator<number, never> {
  for (let state = 1;;) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 32;
  }
}

test("Rows lose less than 2 % of a row to padding, of lengths as chats and web pages have them", () => {
  const draw = drawn();
  const normal = (): number => {
    const [u, v] = [1 - draw.next().value, draw.next().value];
    return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
  };
  for (const [median, sigma, sequenceLength] of [[250, 0.9, 1024], [400, 1.1, 2048], [900, 1.3, 4096]] as const) {
    const lengths = Array.from({ length: 20_000 }, () => Math.ceil(median * Math.exp(sigma * normal())));
    const total = lengths.reduce((sum, length) => sum + length, 0);
    const split = rowsOf(lengths, sequenceLength, "bfd-split");
    assert.ok(split.padding < 0.02, `${split.padding} of rows of ${sequenceLength}`);
    assert.deepEqual([split.tokens, split.cutSamples, split.cutTokens], [total, 0, 0]);
    const cut = rowsOf(lengths, sequenceLength, "bfd");
    assert.ok(cut.padding < 0.02, `${cut.padding} of rows of ${sequenceLength}`);
    assert.equal(cut.cutSamples, lengths.filter((length) => length > sequenceLength).length);
    assert.equal(cut.tokens + cut.cutTokens, total);
    assert.ok(Array.from({ length: cut.numRows }, (_, row) => cut.lengthOf(row)).every((n) => n <= sequenceLength));
  }
});

test("Rows without packing are a sample each, cut at the sequence length", () => {
  const rows = rowsOf([3, 0, 9, 4], 4, "none");
  assert.deepEqual(partsOf(rows), [[[0, 0, 3]], [[2, 0, 4]], [[3, 0, 4]]]);
  assert.deepEqual([rows.cutSamples, rows.cutTokens, rows.tokens], [1, 5, 11]);
});

test("NumberSet.next() finds the smallest number from another one on", () => {
  const draw = drawn();
  for (const limit of [1, 31, 32, 33, 1025, 40_000]) {
    const [set, plain] = [new NumberSet(limit), new Set<number>()];
    for (let i = 0; i < 400; i++) {
      const value = Math.floor(draw.next().value * limit);
      if (draw.next().value < 0.6) {
        set.add(value);
        plain.add(value);
      } else {
        set.delete(value);
        plain.delete(value);
      }
      const least = Math.floor(draw.next().value * (limit + 1));
      const expected = [...plain].filter((number) => number >= least).sort((a, b) => a - b)[0];
      assert.equal(set.next(least), expected);
    }
  }
});
