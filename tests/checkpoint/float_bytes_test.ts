/**
 * Conversions of floating-point bytes, against DataView and against rounding by exhaustive comparison.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeToFloat32, encodeFloats } from "../../src/checkpoint/format/float_bytes.ts";
import { bfloat16 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, NonFiniteError } from "../../src/errors.ts";

/** Every 16-bit pattern, little-endian, one byte off any alignment. */
function allHalves(): Uint8Array {
  const bytes = new Uint8Array(2 * 65536 + 1).subarray(1);
  for (let i = 0; i < 65536; i++) {
    bytes[2 * i] = i & 255;
    bytes[2 * i + 1] = i >> 8;
  }
  return bytes;
}

test("decodeToFloat32() reads every F16 value", () => {
  const values = decodeToFloat32("F16", allHalves());
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31;
    const mantissa = bits & 1023;
    const magnitude = exponent === 31
      ? (mantissa === 0 ? Infinity : NaN)
      : exponent === 0
      ? mantissa * 2 ** -24
      : (1024 + mantissa) * 2 ** (exponent - 25);
    const expected = bits < 32768 ? magnitude : -magnitude;
    assert.ok(Object.is(values[bits], expected), `${bits.toString(16)}: ${values[bits]} is not ${expected}`);
  }
});

test("decodeToFloat32() reads every BF16 value, and encodeFloats() gives it back", () => {
  const bytes = allHalves();
  const values = decodeToFloat32("BF16", bytes);
  const view = new DataView(new ArrayBuffer(4));
  const back = encodeFloats(bfloat16, Float32Array.from(values), "w");
  for (let bits = 0; bits < 65536; bits++) {
    view.setUint32(0, bits << 16);
    assert.ok(Object.is(values[bits], view.getFloat32(0)));
    const got = (back[2 * bits] ?? 0) | ((back[2 * bits + 1] ?? 0) << 8);
    const isNan = (bits & 0x7fff) > 0x7f80;
    assert.equal(isNan ? got & 0x7f80 : got, isNan ? 0x7f80 : bits);
    if (isNan) assert.ok((got & 0x7f) !== 0);
  }
});

test("encodeFloats() rounds to nearest, ties to even", () => {
  const words = new Uint32Array(1);
  const value = new Float32Array(words.buffer);
  const bits = (word: number): number => {
    words[0] = word;
    const [low = 0, high = 0] = encodeFloats(bfloat16, value, "w");
    return low | (high << 8);
  };
  assert.equal(bits(0x3f808000), 0x3f80);
  assert.equal(bits(0x3f818000), 0x3f82);
  assert.equal(bits(0x3f807fff), 0x3f80);
  assert.equal(bits(0x3f808001), 0x3f81);
  assert.throws(() => bits(0x7f7fffff), /'w' has 3\.4028\d+e\+38, which bfloat16 cannot hold/);
  assert.equal(bits(0xff7f7fff), 0xff7f);
  assert.throws(() => bits(0xff7f8000), NonFiniteError);
  assert.equal(bits(0xff800000), 0xff80);
  assert.equal(bits(0x00008000), 0x0000);
  assert.equal(bits(0x00018000), 0x0002);
  assert.equal(bits(0x7f800001), 0x7fc0);
});

test("decodeToFloat32() reads F32 bits as they are and rounds F64, at any alignment", () => {
  const doubles = Float64Array.of(1 / 3, -1e300, 1e-50, 16777217, Math.PI);
  const shifted = new Uint8Array(41).subarray(1);
  shifted.set(new Uint8Array(doubles.buffer));
  assert.deepEqual(decodeToFloat32("F64", shifted), Float32Array.from(doubles, Math.fround));
  const words = Uint8Array.of(0, 1, 2, 0x83, 0xff, 0xff, 0x7f, 0x3f, 0, 0, 0xc0, 0x7f);
  assert.deepEqual(new Uint8Array(decodeToFloat32("F32", words).buffer), words);
});

test("decodeToFloat32() writes where it is told, and refuses other lengths and dtypes", () => {
  const memory = new Float32Array(5).fill(9);
  const out = memory.subarray(1, 3);
  assert.equal(decodeToFloat32("BF16", Uint8Array.of(0x80, 0x3f, 0, 0x40), out), out);
  assert.deepEqual([...memory], [9, 1, 2, 9, 9]);
  assert.throws(() => decodeToFloat32("BF16", new Uint8Array(6), out), ArgumentError);
  assert.throws(() => decodeToFloat32("F32", new Uint8Array(7)), ArgumentError);
  assert.throws(() => decodeToFloat32("I64", new Uint8Array(8)), DTypeError);
});
