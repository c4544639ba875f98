/**
 * The results of PyTorch for cases, as `tests/parity/make_fuzz.py` writes them, and the allowed distance from them.
 *
 * @module
 */
import { bfloat16, float16, float32 } from "../../src/dtype.ts";
import type { Case } from "./cases.ts";
import { type Computed, dtypeOf, largestSeed } from "./run.ts";
import { LARGEST_INPUT } from "./draw.ts";

/** Numbers computed in float64. */
interface ExpectedArray {
  readonly numbers: Float32Array<ArrayBuffer>;
  /** Largest distance of PyTorch in the case's own dtype. */
  readonly distance: number;
}

/** The expected results of one case. */
export interface Expected {
  /** FNV-1a of the case's line. */
  readonly hash: number;
  /** Outputs, then gradients, undefined where a leaf has none. Undefined where PyTorch refuses the case. */
  readonly arrays: readonly (ExpectedArray | undefined)[] | undefined;
}

/** FNV-1a of a text. */
export function hashOf(line: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(line)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}

/** Reads what the script wrote. */
export function readExpected(bytes: Uint8Array<ArrayBuffer>): Expected[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const cases: Expected[] = [];
  let place = 0;
  const next = (): number => (place += 4) - 4;
  while (place < bytes.length) {
    const hash = view.getUint32(next(), true);
    const count = view.getInt32(next(), true);
    const arrays = Array.from({ length: Math.max(0, count) }, () => {
      const length = view.getInt32(next(), true);
      const distance = view.getFloat32(next(), true);
      if (length < 0) return undefined;
      return { numbers: Float32Array.from({ length }, () => view.getFloat32(next(), true)), distance };
    });
    cases.push({ hash, arrays: count < 0 ? undefined : arrays });
  }
  return cases;
}

/** Distance of neighbouring numbers near 1, in float32 twice that for roundings inside of kernels; and near 0. */
const SPACINGS = new Map([
  [float32, [2 ** -22, 2 ** -140]],
  [bfloat16, [2 ** -7, 2 ** -130]],
  [float16, [2 ** -10, 2 ** -24]],
]);

/** Numbers whose largest distance from what is expected was a share of the allowed one. */
export interface Difference {
  readonly share: number;
  readonly text: string;
}

const isSame = (a: number, b: number): boolean => a === b || (Number.isNaN(a) && Number.isNaN(b));

/**
 * The distance of one array. Allowed are twice PyTorch's own distance from the exact result in that dtype, and two roundings of the number and
 * one of the largest number on the way, since numbers near 0 are often differences of large ones.
 */
function differenceOf(
  actual: readonly number[],
  expected: ExpectedArray,
  spacing: readonly number[],
  largest: number,
): Difference {
  const { numbers, distance } = expected;
  if (actual.length !== numbers.length) {
    return { share: Infinity, text: `${actual.length} elements, expected ${numbers.length}` };
  }
  const [relative = NaN, least = NaN] = spacing;
  let worst = { share: 0, text: "equal" };
  for (const [i, value] of actual.entries()) {
    const wanted = numbers[i] ?? NaN;
    if (isSame(value, wanted)) continue;
    const allowed = 2 * distance + relative * (2 * Math.abs(wanted) + largest) + least;
    const off = Math.abs(value - wanted) / allowed;
    const share = Number.isNaN(off) ? Infinity : off;
    if (share > worst.share) worst = { share, text: `element ${i} is ${value}, expected ${wanted}` };
  }
  return worst;
}

function largestOf(arrays: readonly (ExpectedArray | undefined)[]): number {
  let largest = 1;
  for (const { numbers } of arrays.filter((array) => array !== undefined)) {
    for (const value of numbers) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  }
  return largest;
}

/** The largest difference of a case. */
export function compareCase(
  { text, roundings }: Case,
  { outputs, gradients }: Computed,
  arrays: readonly (ExpectedArray | undefined)[],
): Difference {
  const floats = text.inputs.flatMap((input) => "same" in input ? [] : [dtypeOf(input.dtype)]).filter(({ kind }) =>
    kind === "float"
  );
  const narrowest = [...floats].sort((a, b) => (SPACINGS.get(b)?.[0] ?? 0) - (SPACINGS.get(a)?.[0] ?? 0))[0] ?? float32;
  const [relative = NaN, least = NaN] = SPACINGS.get(narrowest) ?? [];
  const spacing = [relative * roundings, least];
  const all = [...outputs, ...gradients];
  if (all.length !== arrays.length) {
    return { share: Infinity, text: `${all.length} arrays, expected ${arrays.length}` };
  }
  const ofOutputs = largestOf(arrays.slice(0, outputs.length));
  // On their way, gradients are as large as seeds times outputs times inputs.
  const onTheWay = largestSeed(text.way) * ofOutputs * LARGEST_INPUT;
  const ofGradients = Math.max(largestOf(arrays.slice(outputs.length)), onTheWay);
  let worst: Difference = { share: 0, text: "equal" };
  for (const [i, actual] of all.entries()) {
    const expected = arrays[i];
    const name = i < outputs.length ? `output ${i}` : `gradient of trained leaf ${i - outputs.length}`;
    const difference = actual === undefined || expected === undefined
      ? actual === expected ? worst : { share: Infinity, text: `is ${actual === undefined ? "missing" : "there"}` }
      : differenceOf(actual, expected, spacing, i < outputs.length ? ofOutputs : ofGradients);
    if (difference.share > worst.share) worst = { share: difference.share, text: `${name}: ${difference.text}` };
  }
  return worst;
}
