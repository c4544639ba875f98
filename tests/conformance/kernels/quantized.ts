/**
 * Kernels on quantized weights against loops that read the blocks byte by byte.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32, uint8 } from "../../../src/dtype.ts";
import type { Quantization } from "../../../src/quantized.ts";
import type { QUANTIZED_KERNELS } from "../../../src/device/kernels/quantized.ts";
import { type Cases, type CasesOf, close, each, fround, pick, type Properties, rounding, sum } from "./case.ts";

/** Values of 4-bit codes, as bitsandbytes' `get_4bit_type("nf4")` lists them. */
export const NF4_VALUES: readonly number[] = [
  -1.0,
  -0.6961928009986877,
  -0.5250730514526367,
  -0.39491748809814453,
  -0.28444138169288635,
  -0.18477343022823334,
  -0.09105003625154495,
  0.0,
  0.07958029955625534,
  0.16093020141124725,
  0.24611230194568634,
  0.33791524171829224,
  0.44070982933044434,
  0.5626170039176941,
  0.7229568362236023,
  1.0,
];

/** Values of 8-bit codes of magnitudes: decimal exponents in unary, linear fractions, both signs. */
const DYNAMIC_VALUES: readonly number[] = (() => {
  const positive = each(7, (exponent) => exponent).flatMap((exponent) => {
    const count = 2 ** exponent;
    const edge = (i: number): number => 0.1 + 0.9 * i / count;
    return each(count, (i) => 10 ** (exponent - 6) * (edge(i) + edge(i + 1)) / 2);
  });
  return [...positive.map((value) => -value), 0, 1, ...positive].sort((a, b) => a - b);
})();

const FORMATS: Readonly<Record<Quantization, { readonly elements: number; readonly bytes: number }>> = {
  nf4: { elements: 64, bytes: 36 },
  int8: { elements: 64, bytes: 68 },
  nf4Nested: { elements: 64 * 256, bytes: 8 + 256 + 256 * 32 },
};

function blocksOf(format: Quantization, n: number) {
  const { elements, bytes } = FORMATS[format];
  return { format, blocks: Math.ceil(n / elements), blockBytes: bytes };
}

/** Blocks of random codes, with magnitudes around 1. */
function randomBlocks(format: Quantization, n: number): Uint8Array {
  const { blocks, blockBytes } = blocksOf(format, n);
  const bytes = Uint8Array.from(each(blocks * blockBytes, (i) => (i * 2654435761 ^ (i * 40503 >>> 3)) & 255));
  const view = new DataView(bytes.buffer);
  for (let block = 0; block < blocks; block++) {
    view.setFloat32(block * blockBytes, 0.25 + block % 7 / 8, true);
    if (format === "nf4Nested") view.setFloat32(block * blockBytes + 4, 1.5, true);
  }
  return bytes;
}

/** The element that blocks hold at a place. */
function elementOf(bytes: Uint8Array, format: Quantization, i: number): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const { elements, bytes: size } = FORMATS[format];
  const [begin, place] = [Math.floor(i / elements) * size, i % elements];
  const nibble = (from: number): number => {
    const byte = pick(bytes, from + Math.floor(place % 64 / 2));
    return pick(NF4_VALUES, place % 2 === 0 ? byte >> 4 : byte & 15);
  };
  if (format === "nf4") return fround(view.getFloat32(begin, true) * nibble(begin + 4));
  if (format === "int8") {
    return fround(view.getFloat32(begin, true) * fround(view.getInt8(begin + 4 + place) / 127));
  }
  const block = Math.floor(place / 64);
  const code = fround(pick(DYNAMIC_VALUES, pick(bytes, begin + 8 + block)));
  const magnitude = fround(fround(code * view.getFloat32(begin, true)) + view.getFloat32(begin + 4, true));
  return fround(magnitude * nibble(begin + 8 + 256 + block * 32));
}

const TYPES = [float32, bfloat16, float16] as const;
const ALL = ["nf4", "int8", "nf4Nested"] as const;
const COUNTS = [0, 1, 63, 64, 65, 200, 16384 + 130];

const dequantize: CasesOf<"dequantize"> = TYPES.flatMap((dtype) =>
  ALL.flatMap((format) =>
    COUNTS.map((n) => {
      const src = randomBlocks(format, n);
      return {
        label: `${dtype.name} of ${n} in ${format}`,
        args: { dtype, n, ...blocksOf(format, n) },
        arrays: { src },
        expect: () => ({
          dst: {
            values: each(n, (i) => rounding(dtype)(elementOf(src, format, i))),
            // The code of magnitudes is computed in float32 in the kernel.
            ...format === "nf4Nested" ? { relative: dtype === float32 ? 1e-6 : 2 ** -8 } : {},
          },
        }),
      };
    })
  )
);

/** The code of ascending values that is nearest, of two the lower. */
function nearest(values: readonly number[], x: number): number {
  return sum(values.length - 1, (i) => Number(fround((pick(values, i) + pick(values, i + 1)) / 2) < x));
}

/** The bytes of blocks of 64 elements that hold some values. */
function quantized(format: "nf4" | "int8", values: readonly number[]): number[] {
  const { blocks, blockBytes } = blocksOf(format, values.length);
  const bytes = new Uint8Array(blocks * blockBytes);
  const view = new DataView(bytes.buffer);
  for (let block = 0; block < blocks; block++) {
    const own = values.slice(block * 64, block * 64 + 64);
    const isFull = own.length === 64;
    const least = Math.max(fround(1e-38), ...own.map(Math.abs));
    const inverse = fround(1 / least);
    const scaled = each(64, (i) => {
      const value = own[i];
      if (value === undefined) return 0;
      return Math.min(1, Math.max(-1, isFull ? fround(value * inverse) : fround(value / least)));
    });
    view.setFloat32(block * blockBytes, isFull ? Math.max(...own.map(Math.abs)) : least, true);
    const at = block * blockBytes + 4;
    if (format === "int8") {
      for (const [i, x] of scaled.entries()) {
        const y = fround(x * 127);
        const [low, rest] = [Math.floor(y), y - Math.floor(y)];
        view.setInt8(at + i, rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low);
      }
    } else {
      for (let i = 0; i < 32; i++) {
        bytes[at + i] = nearest(NF4_VALUES, pick(scaled, 2 * i)) << 4 | nearest(NF4_VALUES, pick(scaled, 2 * i + 1));
      }
    }
  }
  return [...bytes];
}

const quantize: CasesOf<"quantize"> = ALL.flatMap((format) =>
  COUNTS.map((n) => ({
    label: `${n} to ${format}`,
    args: { n, ...blocksOf(format, n) },
    expect: (before, after) => {
      const src = before("src");
      if (format !== "nf4Nested") return { dst: { values: quantized(format, src) } };
      // Each element is as near as its code allows, and the magnitudes by which it was chosen are near.
      const bytes = Uint8Array.from(after("dst"));
      for (const [i, x] of src.entries()) {
        const block = src.slice(i - i % 64, i - i % 64 + 64);
        const bound = Math.max(...block.map(Math.abs)) * 0.16 + 0.02;
        close([elementOf(bytes, format, i)], [x], 0, bound, `element ${i}`);
      }
      return { dst: { values: [...bytes] } };
    },
  }))
);

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly alpha?: number;
  readonly beta?: number;
}

const PRODUCTS: readonly Product[] = [
  { m: 1, n: 1, k: 1 },
  { m: 5, n: 9, k: 7 },
  { m: 3, n: 17, k: 65 },
  { m: 17, n: 33, k: 65 },
  { m: 8, n: 5, k: 31, alpha: -0.5, beta: 2 },
  { m: 1, n: 64, k: 128 },
  { m: 64, n: 1, k: 128 },
  { m: 5, n: 0, k: 3 },
  { m: 5, n: 6, k: 0, beta: 0.5 },
  { m: 9, n: 131, k: 259 },
];
const PAIRS: readonly (readonly [DType, DType])[] = [
  [float32, float32],
  ...[bfloat16, float16].flatMap((dtype) => [[dtype, float32] as const, [dtype, dtype] as const]),
];

const gemmQuantized: CasesOf<"gemmQuantized"> = PAIRS.flatMap(([dtype, outDtype]) =>
  ALL.flatMap((format) =>
    [true, false].flatMap((transB) =>
      PRODUCTS.map(({ m, n, k, alpha = 1, beta = 0 }) => {
        const b = randomBlocks(format, n * k);
        const [lda, ldc] = [k + 3, n + 2];
        return {
          label: `${dtype.name} ${m}x${n}x${k} in ${format}`,
          args: { dtype, outDtype, transB, m, n, k, alpha, beta, lda, ldc, ...blocksOf(format, n * k) },
          arrays: { b },
          expect: (before) => {
            const [a, c] = [before("a"), before("c")];
            const weight = each(n * k, (i) => rounding(dtype)(elementOf(b, format, i)));
            const values: (number | undefined)[] = c.map(() => undefined);
            for (let place = 0; place < m * n; place++) {
              const [i, j] = [Math.floor(place / n), place % n];
              const total = sum(k, (p) => pick(a, i * lda + p) * pick(weight, transB ? j * k + p : p * n + j));
              const at = i * ldc + j;
              values[at] = fround(alpha) * total + (beta === 0 ? 0 : fround(beta) * pick(c, at));
            }
            const relative = outDtype === float32 ? 1e-6 : 2 ** -8 * 1.01;
            const nested = format === "nf4Nested" && dtype !== float32 ? 2 ** -9 : 0;
            return { c: { values, relative, absolute: (1e-6 + nested) * Math.sqrt(k + 1) } };
          },
        };
      })
    )
  )
);

/** Cases of quantized weights. */
export const QUANTIZED_CASES: Cases<keyof typeof QUANTIZED_KERNELS> = { quantize, dequantize, gemmQuantized };

/** What else holds for them. */
export const QUANTIZED_PROPERTIES: Properties = {
  "quantize() of what dequantize() gives changes no byte": (bed) => {
    const { kernels } = bed.device;
    for (const format of ["nf4", "int8"] as const) {
      const n = 1000;
      const blocks = blocksOf(format, n);
      const bytes = blocks.blocks * blocks.blockBytes;
      const [first, again, values] = [bed.room(uint8, bytes), bed.room(uint8, bytes), bed.room(float32, n)];
      kernels.quantize({ n, ...blocks, dst: first, src: bed.put(float32, bed.values(n)) });
      kernels.dequantize({ dtype: float32, n, ...blocks, dst: values, src: first });
      kernels.quantize({ n, ...blocks, dst: again, src: values });
      assert.deepEqual(bed.bytes(again, bytes), bed.bytes(first, bytes), format);
    }
  },
};

/** Further properties of the kernels of the CPU: a library's `gemm` on a card may add up in another order. */
export const OWN_QUANTIZED_PROPERTIES: Properties = {
  "gemmQuantized() gives the bits of gemm() over what dequantize() gives": (bed) => {
    const { kernels } = bed.device;
    for (const dtype of TYPES) {
      for (const format of ALL) {
        for (const [m, n, k] of [[2, 70, 300], [37, 70, 300], [260, 530, 70]] as const) {
          const blocks = blocksOf(format, n * k);
          const packed = bed.put(uint8, [...randomBlocks(format, n * k)]);
          const [weight, a] = [bed.room(dtype, n * k), bed.put(dtype, bed.values(m * k))];
          kernels.dequantize({ dtype, n: n * k, ...blocks, dst: weight, src: packed });
          for (const transB of [true, false]) {
            const [own, wide] = [bed.room(dtype, m * n), bed.room(dtype, m * n)];
            const sizes = { dtype, outDtype: dtype, transB, m, n, k, alpha: 1, beta: 0, lda: k, ldc: n };
            kernels.gemmQuantized({ ...sizes, ...blocks, a, b: packed, c: own });
            const rest = { transA: false, ldb: transB ? k : n, batch: 1, strideA: 0, strideB: 0, strideC: 0 };
            kernels.gemm({ ...sizes, ...rest, a, b: weight, c: wide });
            const bytes = m * n * dtype.byteLength;
            assert.deepEqual(bed.bytes(own, bytes), bed.bytes(wide, bytes), `${dtype.name} ${format} ${m}x${n}x${k}`);
          }
        }
      }
    }
  },
};
