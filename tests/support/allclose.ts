/**
 * Comparing numbers with a reference: fails on anything that is not finite, and says how much of the allowed deviation was
 * used where it was most.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32 } from "../../src/dtype.ts";

/** Allowed is `absolute + relative * |expected|`. */
export interface Tolerance {
  readonly relative: number;
  readonly absolute: number;
}

/** The allowed error of a few operations in one dtype, for values around 1. */
const TOLERANCES: ReadonlyMap<DType, Tolerance> = new Map([
  [float32, { relative: 1e-5, absolute: 2e-6 }],
  [bfloat16, { relative: 2 ** -6, absolute: 2 ** -7 }],
  [float16, { relative: 2 ** -9, absolute: 2 ** -10 }],
]);

/** The tolerance of a dtype. */
export function toleranceOf(dtype: DType): Tolerance {
  const tolerance = TOLERANCES.get(dtype);
  if (tolerance === undefined) throw new Error(`no tolerance for ${dtype.name}`);
  return tolerance;
}

/**
 * Fails unless each number is as close to its reference as allowed.
 *
 * @param label name of the compared values
 * @returns the worst deviation as a share of the allowed one
 */
export function allClose(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  { relative, absolute }: Tolerance,
  label: string,
): number {
  assert.equal(actual.length, expected.length, `${label}: number of elements`);
  let worst = 0;
  let at = 0;
  for (let i = 0; i < expected.length; i++) {
    const [got, want] = [actual[i] ?? NaN, expected[i] ?? NaN];
    const share = Math.abs(got - want) / (absolute + relative * Math.abs(want));
    // Equal zeros with no deviation allowed are 0 / 0.
    const used = got === want && Number.isFinite(want) ? 0 : Number.isFinite(share) ? share : Infinity;
    if (used > worst) [worst, at] = [used, i];
  }
  const detail = `element ${at} is ${actual[at]}, expected ${expected[at]}`;
  assert.ok(worst <= 1, `${label}: worst deviation is ${worst.toPrecision(3)} of the allowed one: ${detail}`);
  return worst;
}

/** Like {@link allClose}, with a deviation allowed that is relative to the largest expected number. */
export function allCloseToScale(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  share: number,
  label: string,
): number {
  let scale = 0;
  for (let i = 0; i < expected.length; i++) scale = Math.max(scale, Math.abs(expected[i] ?? NaN));
  return allClose(actual, expected, { relative: 0, absolute: share * scale }, label);
}
