/**
 * The host's generator: known answers, key derivation, integers without bias and stored-nowhere permutations.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ArgumentError } from "../src/errors.ts";
import { keyOf, Permutation, philox4x32, uniformFraction, uniformInt } from "../src/random.ts";

test("philox4x32() gives the known answers of its authors", () => {
  // Random123 1.14, kat_vectors, philox 4x32 with 10 rounds: counter, key, result.
  const vectors: readonly (readonly [readonly number[], readonly number[], readonly number[]])[] = [
    [[0, 0, 0, 0], [0, 0], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]],
    [[~0, ~0, ~0, ~0], [~0, ~0], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]],
    [[0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0], [
      0xd16cfe09,
      0x94fdcceb,
      0x5001e420,
      0x24126ea1,
    ]],
  ];
  for (const [[c0 = 0, c1 = 0, c2 = 0, c3 = 0], [k0 = 0, k1 = 0], expected] of vectors) {
    const out = new Uint32Array(4);
    philox4x32(out, c0, c1, c2, c3, k0, k1);
    assert.deepEqual([...out], expected);
  }
});

test("philox4x32() agrees with exact integer arithmetic", () => {
  const mask = 0xffffffffn;
  const reference = (counter: bigint[], key: bigint[]): bigint[] => {
    let [c0 = 0n, c1 = 0n, c2 = 0n, c3 = 0n] = counter;
    let [k0 = 0n, k1 = 0n] = key;
    for (let round = 0; round < 10; round++) {
      const p0 = 0xd2511f53n * c0;
      const p1 = 0xcd9e8d57n * c2;
      [c0, c1, c2, c3] = [(p1 >> 32n) ^ c1 ^ k0, p1 & mask, (p0 >> 32n) ^ c3 ^ k1, p0 & mask];
      k0 = (k0 + 0x9e3779b9n) & mask;
      k1 = (k1 + 0xbb67ae85n) & mask;
    }
    return [c0, c1, c2, c3];
  };
  const out = new Uint32Array(4);
  let state = [1, 2, 3, 4, 5, 6];
  for (let i = 0; i < 200; i++) {
    const [c0 = 0, c1 = 0, c2 = 0, c3 = 0, k0 = 0, k1 = 0] = state;
    philox4x32(out, c0, c1, c2, c3, k0, k1);
    assert.deepEqual([...out].map(BigInt), reference([c0, c1, c2, c3].map(BigInt), [k0, k1].map(BigInt)));
    state = [...out, c0 >>> 0, c1 >>> 0];
  }
});

test("keyOf() keeps its values, whatever the version", () => {
  assert.deepEqual(
    [keyOf(0, ""), keyOf(0, "a"), keyOf(1, "a"), keyOf(2 ** 53 - 1, "model.layers.0.self_attn.q_proj.weight")],
    KEYS,
  );
});

test("keyOf() separates seeds, names, lengths and padding", () => {
  const keys = new Set<number>();
  let made = 0;
  const add = (seed: number, name: string): void => {
    const key = keyOf(seed, name);
    assert.ok(Number.isSafeInteger(key) && key >= 0);
    keys.add(key);
    made++;
  };
  for (let seed = 0; seed < 50; seed++) {
    for (let layer = 0; layer < 40; layer++) add(seed, `model.layers.${layer}.mlp.up_proj.weight`);
  }
  for (const name of ["", "\0", "\0\0", "12345678", "12345678\0", "ä", "a\u0308"]) add(0, name);
  add(2 ** 32, "");
  assert.equal(keys.size, made);
});

test("keyOf() changes half of its bits with one bit of the seed", () => {
  let flipped = 0;
  for (let bit = 0; bit < 53; bit++) {
    let difference = BigInt(keyOf(0, "weight")) ^ BigInt(keyOf(2 ** bit, "weight"));
    for (; difference > 0n; difference >>= 1n) flipped += Number(difference & 1n);
  }
  const share = flipped / (53 * 53);
  assert.ok(share > 0.45 && share < 0.55, `share of flipped bits ${share}`);
});

test("uniformInt() is uniform and depends on key and index only", () => {
  const key = keyOf(7, "integers");
  const counts = new Array<number>(10).fill(0);
  for (let i = 0; i < 20_000; i++) {
    const value = uniformInt(key, i, 10);
    counts[value] = (counts[value] ?? 0) + 1;
  }
  const chi = counts.reduce((sum, count) => sum + (count - 2000) ** 2 / 2000, 0);
  assert.ok(chi < 27.9, `chi-square ${chi} of 9 degrees, 0.999 quantile 27.9`);
  assert.equal(uniformInt(key, 5, 1), 0);
  assert.equal(uniformInt(key, 123, 10), uniformInt(key, 123, 10));
  assert.notEqual(uniformInt(key, 2 ** 40, 2 ** 53), uniformInt(key, 0, 2 ** 53));
});

test("uniformFraction() stays in [0, 1) with the right mean", () => {
  let sum = 0;
  for (let i = 0; i < 10_000; i++) {
    const value = uniformFraction(3, i);
    assert.ok(value >= 0 && value < 1);
    sum += value;
  }
  assert.ok(Math.abs(sum / 10_000 - 0.5) < 0.012);
});

test("Permutation visits every place once, for each length and epoch", () => {
  for (const length of [1, 2, 3, 4, 5, 7, 16, 17, 64, 1000, 4097]) {
    for (const epoch of [0, 1, 2 ** 40]) {
      const permutation = new Permutation(length, keyOf(1, "order"), epoch);
      const seen = new Set<number>();
      for (let i = 0; i < length; i++) seen.add(permutation.at(i));
      assert.equal(seen.size, length);
      assert.ok([...seen].every((value) => value >= 0 && value < length));
    }
  }
});

test("Permutation sends every place everywhere", () => {
  const length = 6;
  const counts = new Array<number>(length * length).fill(0);
  const rounds = 6000;
  for (let epoch = 0; epoch < rounds; epoch++) {
    const permutation = new Permutation(length, 42, epoch);
    for (let place = 0; place < length; place++) {
      const cell = place * length + permutation.at(place);
      counts[cell] = (counts[cell] ?? 0) + 1;
    }
  }
  const expected = rounds / length;
  const chi = counts.reduce((sum, count) => sum + (count - expected) ** 2 / expected, 0);
  assert.ok(chi < 52.6, `chi-square ${chi} of 25 degrees, 0.999 quantile 52.6`);
});

test("Permutation of another key or epoch is another order", () => {
  const order = (key: number, epoch: number): string => {
    const permutation = new Permutation(50, key, epoch);
    return Array.from({ length: 50 }, (_, i) => permutation.at(i)).join();
  };
  assert.equal(order(1, 0), order(1, 0));
  assert.notEqual(order(1, 0), order(1, 1));
  assert.notEqual(order(1, 0), order(2, 0));
});

test("random numbers refuse arguments out of range", () => {
  assert.throws(() => keyOf(-1, "a"), ArgumentError);
  assert.throws(() => keyOf(2 ** 53, "a"), ArgumentError);
  assert.throws(() => keyOf(0.5, "a"), ArgumentError);
  assert.throws(() => uniformInt(0, 0, 0), ArgumentError);
  assert.throws(() => uniformInt(0, -1, 5), ArgumentError);
  assert.throws(() => new Permutation(3, 0, 0).at(3), ArgumentError);
  assert.throws(() => new Permutation(0, 0, 0).at(0), ArgumentError);
});

// Computed by an independent implementation in Python's unbounded integers, from the docstring of keyOf().
const KEYS: readonly number[] = [8541792267812363, 175134576808157, 6488557016241601, 7374085097807575];
