/**
 * All code that computes on the CPU gives the same bits: native kernels those of strict WASM, but where products fuse a
 * multiplication and an addition; and there those of each other, and of relaxed WASM in a runtime that fuses. So does any number
 * of threads.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import type { Device } from "../../src/device/device.ts";
import { PRODUCT_KERNELS } from "../../src/device/kernels/products.ts";
import { type NativeDeviceOptions, openNativeDevice } from "../../src/device/native/device.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { available } from "../support/available.ts";
import { CASES } from "../conformance/device.ts";
import { Bed, type Values } from "../conformance/kernels/bed.ts";
import type { AnyCase } from "../conformance/kernels/case.ts";
import { onlyInAll } from "../support/share.ts";

const memoryBytes = 2 ** 26;
const PRODUCTS: readonly string[] = [
  ...Object.keys(PRODUCT_KERNELS),
  ...["combinePairs", "gemmQuantized", "groupedGemm", "groupedGemmOuter"],
];
const OTHERS = Object.keys(CASES).filter((kernel) => !PRODUCTS.includes(kernel));

function openNative(options: NativeDeviceOptions): Promise<Device | undefined> {
  return available(openNativeDevice({ memoryBytes, ...options }));
}

/** The values that the cases of some kernels write, on a bed of its own, so that random arrays are the same. */
function bitsOf(device: Device, kernels: readonly string[]): ReadonlyMap<string, readonly Values[]> {
  const bed = new Bed(device);
  const cases = new Map<string, readonly AnyCase[]>(Object.entries(CASES));
  return new Map(kernels.map((kernel) => [kernel, (cases.get(kernel) ?? []).map((one) => bed.results(kernel, one))]));
}

const strict = await openWasmDevice({ cpuMath: "wasm", memoryBytes });
const relaxed = await openWasmDevice({ cpuMath: "wasm-relaxed", memoryBytes });
const [v3, v4, bf16] = [
  await openNative({ level: "v3" }),
  await openNative({ level: "v4" }),
  await openNative({ level: "v4-bf16" }),
];
const neon = await openNative({ level: "neon" });
const native = bf16 ?? v4 ?? v3 ?? neon;
// Pieces of one element: what can be cut, is.
const shared = await Promise.all(
  [3, ...onlyInAll([2])].map(async (threads) => [threads, await openNative({ threads, leastWork: 1 })] as const),
);
after(() =>
  [strict, relaxed, v3, v4, bf16, neon, ...shared.map(([, device]) => device)].forEach((device) => device?.dispose())
);

const expected = bitsOf(strict, OTHERS);
assert.equal(expected.size, OTHERS.length);
for (
  const [name, device] of [
    ["relaxed WASM", relaxed],
    ["native v3", v3],
    // Where there is a wider one, the gate leaves v4 out.
    ...(bf16 === undefined ? [["native v4", v4]] as const : onlyInAll([["native v4", v4]] as const)),
    ["native v4-bf16", bf16],
    ["native neon", neon],
  ] as const
) {
  test(`${name} gives the bits of strict WASM but for products`, { skip: device === undefined && "not here" }, () => {
    for (const [kernel, values] of device === undefined ? [] : bitsOf(device, OTHERS)) {
      assert.ok(isDeepStrictEqual(values, expected.get(kernel)), kernel);
    }
  });
}

for (const [name, device] of [["v4-bf16", bf16], ...onlyInAll([["v4", v4]] as const)] as const) {
  const skip = (v3 === undefined || device === undefined) && "not here";
  test(`native ${name} gives the products of v3`, { skip }, () => {
    if (v3 === undefined || device === undefined) return;
    const [values, expected] = [bitsOf(device, PRODUCTS), bitsOf(v3, PRODUCTS)];
    for (const kernel of PRODUCTS) assert.ok(isDeepStrictEqual(values.get(kernel), expected.get(kernel)), kernel);
  });
}

const products = bitsOf(relaxed, PRODUCTS);
const fuses = !isDeepStrictEqual(products, bitsOf(strict, PRODUCTS));
const why = native === undefined ? "not here" : !fuses && "relaxed WASM does not fuse in this runtime";
test("native products are those of relaxed WASM where that fuses", { skip: why }, () => {
  if (native !== undefined) assert.ok(isDeepStrictEqual(bitsOf(native, PRODUCTS), products));
});

/** The gate takes each second kernel. */
const [EVERY = 2] = onlyInAll([1]);
for (const [threads, device] of shared) {
  test(`${threads} threads give the bits of one`, { skip: device === undefined && "not here" }, () => {
    if (device === undefined || native === undefined) return;
    const kernels = Object.keys(CASES).filter((_, place) => place % EVERY === 0);
    const expected = bitsOf(native, kernels);
    for (const [kernel, values] of bitsOf(device, kernels)) {
      assert.ok(isDeepStrictEqual(values, expected.get(kernel)), kernel);
    }
  });
}
