/**
 * The 256 values of an 8-bit number with a dynamic exponent (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning"), as
 * bitsandbytes' `create_dynamic_map` makes them: in each power of ten from 1e-6 to 1 values at equal distances, twice as many in each
 * next one.
 *
 * @module
 */

/** Bits of an exponent at most: a power of ten each. */
const EXPONENTS = 7;

/** Middles of `count` equal parts of the range from 0.1 to 1, in float32. */
function middles(count: number): readonly number[] {
  const { fround } = Math;
  // As PyTorch's linspace, which counts from the nearer end.
  const [start, end] = [fround(0.1), 1];
  const step = fround(fround(end - start) / count);
  const borders = Array.from({ length: count + 1 }, (_, i) => {
    // A product and a sum are rounded once, as a float64 holds the product.
    return fround(i < Math.floor((count + 1) / 2) ? start + step * i : end - step * (count - i));
  });
  return borders.slice(1).map((border, i) => fround(fround((borders[i] ?? NaN) + border) / 2));
}

/**
 * The values, which ascend.
 *
 * @param isSigned from -0.993 to 1, for first moments; else from 0 to 1, for second moments
 */
export function dynamicMap(isSigned: boolean): Float32Array<ArrayBuffer> {
  const values = [0, 1];
  for (let i = 0; i < EXPONENTS; i++) {
    const scale = Math.fround(Number(`1e${i - EXPONENTS + 1}`));
    for (const middle of middles(2 ** (isSigned ? i : i + 1))) {
      const value = Math.fround(scale * middle);
      values.push(value, ...isSigned ? [-value] : []);
    }
  }
  return Float32Array.from(values).sort();
}
