/**
 * Blocks of 8-bit numbers against loops over all values of the map.
 *
 * @module
 */
import { type Cases, type CasesOf, each, fround, pick } from "./case.ts";

/** Without a gate, with an open one, and with one that is set. */
const GATES = [undefined, 0, 1];
const gateArray = (gate: number | undefined): { readonly gate?: readonly number[] } =>
  gate === undefined ? {} : { gate: [gate] };

/** Sizes of blocks of 8-bit numbers: the first may begin within a block, the last may end in one. */
const BLOCK_SIZES = [[40, 0, 16], [64, 48, 64], [7, 3, 16], [300, 192, 256], [5, 0, 256]].map((
  [n = 0, first = 0, block = 1],
) => ({
  n,
  first,
  block,
  blocks: Math.ceil((first + n) / block),
}));

/** Values that ascend from -0.99 to 1, closest around 0. */
const MAP = each(256, (i) => fround(i === 127 ? 0 : Math.sign(i - 127) * (Math.abs(i - 127) / 128) ** 2));

const largestOfBlocks: CasesOf<"largestOfBlocks"> = BLOCK_SIZES.map(({ n, first, block, blocks }) => ({
  args: { n, first, block, blocks },
  expect: (before) => {
    const src = before("src");
    const of = (b: number): number =>
      Math.max(0, ...src.filter((_, i) => Math.floor((first + i) / block) === b).map(Math.abs));
    return { dst: { values: each(blocks, of) } };
  },
}));

const quantizeBlocks: CasesOf<"quantizeBlocks"> = GATES.flatMap((gate) =>
  BLOCK_SIZES.map((sizes) => ({
    label: `gate ${gate}`,
    args: sizes,
    arrays: { map: MAP, largest: each(sizes.blocks, (i) => i === 1 ? 0 : 1 + i / 8), ...gateArray(gate) },
    ...gate === undefined ? { without: ["gate"] as const } : {},
    expect: (before) => {
      const [src, largest] = [before("src"), before("largest")];
      const codes = before("codes").map((old, i) => {
        if (gate === 1) return old;
        const most = pick(largest, Math.floor((sizes.first + i) / sizes.block));
        const x = most > 0 ? fround(pick(src, i) / most) : 0;
        return MAP.reduce((best, value, code) => Math.abs(value - x) < Math.abs(pick(MAP, best) - x) ? code : best, 0);
      });
      return { codes: { values: codes } };
    },
  }))
);

const dequantizeBlocks: CasesOf<"dequantizeBlocks"> = BLOCK_SIZES.map((sizes) => ({
  args: sizes,
  arrays: { map: MAP, codes: each(sizes.n, (i) => (i * 37) % 256) },
  expect: (before) => {
    const [codes, largest] = [before("codes"), before("largest")];
    const values = codes.map((code, i) =>
      fround(pick(MAP, code) * pick(largest, Math.floor((sizes.first + i) / sizes.block)))
    );
    return { dst: { values } };
  },
}));

/** Cases of kernels of blocks of 8-bit numbers. */
export const BLOCK_CASES: Cases<"largestOfBlocks" | "quantizeBlocks" | "dequantizeBlocks"> = {
  largestOfBlocks,
  quantizeBlocks,
  dequantizeBlocks,
};
