/**
 * The suite that every device passes, over the whole table of kernels: values against plain loops, what any call must keep to
 * (`kernels/bed.ts`), and arguments that are refused. A kernel without a case does not compile.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { COMPUTE_DTYPES, DTYPES, float32 } from "../../src/dtype.ts";
import { DTypeError, InternalError, UnsupportedError } from "../../src/errors.ts";
import type { Device } from "../../src/device/device.ts";
import type { Arguments, ValueKind } from "../../src/device/kernels/signature.ts";
import type { KernelName } from "../../src/device/kernels/table.ts";
import { SINK_CASES } from "./kernels/attention_sinks.ts";
import { ARRAY_CASES, ARRAY_PROPERTIES } from "./kernels/arrays.ts";
import { BLOCK_CASES } from "./kernels/blocks.ts";
import { Bed, entryOf } from "./kernels/bed.ts";
import type { AnyCase, Cases, Properties } from "./kernels/case.ts";
import { DROPOUT_CASES, DROPOUT_PROPERTIES } from "./kernels/dropout.ts";
import { EXPERT_CASES } from "./kernels/experts.ts";
import { FAULT_PROPERTIES } from "./kernels/faults.ts";
import { FLOAT16_PROPERTIES } from "./kernels/float16.ts";
import { LAYER_CASES, LAYER_PROPERTIES } from "./kernels/layers.ts";
import { MASK_CASES, MASK_PROPERTIES } from "./kernels/masks.ts";
import { NORM_CASES, NORM_PROPERTIES } from "./kernels/norm.ts";
import { PRODUCT_CASES, PRODUCT_PROPERTIES } from "./kernels/products.ts";
import { QUANTIZED_CASES, QUANTIZED_PROPERTIES } from "./kernels/quantized.ts";
import { ROUTER_PROPERTIES } from "./kernels/router.ts";
import { TRAINING_CASES, TRAINING_PROPERTIES } from "./kernels/training.ts";

/** Cases of every kernel. */
export const CASES: Cases<KernelName> = {
  ...ARRAY_CASES,
  ...MASK_CASES,
  ...PRODUCT_CASES,
  ...QUANTIZED_CASES,
  ...SINK_CASES,
  ...LAYER_CASES,
  ...DROPOUT_CASES,
  ...NORM_CASES,
  ...EXPERT_CASES,
  ...TRAINING_CASES,
  ...BLOCK_CASES,
};

const PROPERTIES: Properties = {
  ...ARRAY_PROPERTIES,
  ...MASK_PROPERTIES,
  ...PRODUCT_PROPERTIES,
  ...QUANTIZED_PROPERTIES,
  ...LAYER_PROPERTIES,
  ...DROPOUT_PROPERTIES,
  ...FAULT_PROPERTIES,
  ...FLOAT16_PROPERTIES,
  ...NORM_PROPERTIES,
  ...ROUTER_PROPERTIES,
  ...TRAINING_PROPERTIES,
};

/** Sizes that other arguments rely on: what records or pairs lie in, and what a sum is cut by. */
const NEVER_EMPTY: ReadonlyMap<string, readonly string[]> = new Map([
  ["rope", ["headDim"]],
  ["quantize", ["blocks", "blockBytes"]],
  ["dequantize", ["blocks", "blockBytes"]],
  ["gemmQuantized", ["blocks", "blockBytes"]],
  ["adamw", ["n", "numStates"]],
  ["sgd", ["n", "numStates"]],
  ["lion", ["n", "numStates"]],
  ["largestOfBlocks", ["block"]],
  ["quantizeBlocks", ["block"]],
  ["dequantizeBlocks", ["block"]],
  ["sumPowers", ["block"]],
]);

/** A few cases, from all of the list. */
function some(list: readonly AnyCase[]): readonly AnyCase[] {
  return list.filter((_, i) => i % Math.ceil(list.length / 8) === 0);
}

/** Arguments like those given of which one is wrong, and the error that must be thrown for it. */
function* refused(
  name: string,
  kind: ValueKind,
  args: Arguments,
): Generator<readonly [wrong: Arguments, error: typeof DTypeError | typeof InternalError]> {
  const value = args[name];
  if (kind === "float") {
    for (const dtype of DTYPES.filter((one) => !COMPUTE_DTYPES.includes(one))) {
      yield [{ ...args, [name]: dtype }, DTypeError];
    }
  } else if (kind === "shape") yield [{ ...args, [name]: new Array<number>(9).fill(1) }, InternalError];
  else if (kind === "strides") yield [{ ...args, [name]: new Array<number>(7).fill(1) }, InternalError];
  else if (typeof kind === "string") return;
  else if ("dtypes" in kind) {
    for (const dtype of DTYPES) if (!kind.dtypes.includes(dtype.name)) yield [{ ...args, [name]: dtype }, DTypeError];
  } else if ("widens" in kind) {
    for (const dtype of DTYPES) {
      if (dtype !== args[kind.widens] && dtype !== float32) yield [{ ...args, [name]: dtype }, DTypeError];
    }
  } else if ("atMost" in kind) yield [{ ...args, [name]: kind.atMost + 1 }, InternalError];
  else if (typeof value === "number") yield [{ ...args, [kind.divides]: 2 * value + 1, [name]: 2 }, InternalError];
}

/**
 * Registers the suite for one device.
 *
 * @param device undefined where it is not to be had
 * @param missing the requirement that is not met
 * @param properties further tests of this device
 * @param kernels those whose cases are run
 * @param every of a kernel's cases each n-th is run, from the first on
 */
export function conformDevice(
  name: string,
  device: Device | undefined,
  missing: string = "it is not here",
  properties: Properties = {},
  kernels: readonly string[] = Object.keys(CASES),
  every: number = 1,
): void {
  describe(`${name} device`, () => {
    if (device === undefined) return it("passes the suite", { skip: missing });
    after(() => device.dispose());
    const bed = new Bed(device);
    const lacks = new Set<string>(device.traits.missingKernels);
    for (const [kernel, cases] of Object.entries(CASES).filter(([kernel]) => kernels.includes(kernel))) {
      const all: readonly AnyCase[] = cases;
      const list = all.filter((_, i) => i % every === 0);
      const { values, arrays } = entryOf(kernel);
      if (lacks.has(kernel)) {
        it(`${kernel}() is refused, as the device says that it lacks it`, () => {
          const [one] = list;
          assert.ok(one !== undefined);
          assert.throws(
            () => bed.call(kernel, bed.addressed(kernel, one)),
            (error) => error instanceof UnsupportedError && error.message.includes(`kernel '${kernel}'`),
          );
        });
        continue;
      }
      it(`${kernel}() computes what it says`, () => {
        assert.ok(list.length > 0);
        for (const one of list) bed.run(kernel, one);
      });
      it(`${kernel}() takes nothing for an array`, () => {
        const factors = new Set(Object.values(arrays).flatMap(({ shape }) => shape.flat()));
        const sizes = Object.keys(values).filter((name) => factors.has(name) && values[name] !== "shape");
        for (const size of sizes.filter((name) => !NEVER_EMPTY.get(kernel)?.includes(name))) {
          for (const one of some(list)) bed.runEmpty(kernel, one, size);
        }
      });
      it(`${kernel}() refuses what it does not compute`, () => {
        const [one] = list;
        assert.ok(one !== undefined);
        const args = bed.addressed(kernel, one);
        for (const [name, kind] of Object.entries(values)) {
          for (const [wrong, error] of refused(name, kind, args)) {
            assert.throws(() => bed.call(kernel, wrong), error, `${kernel} with another '${name}'`);
          }
        }
        for (const name of Object.keys(arrays).filter((array) => arrays[array]?.list)) {
          assert.throws(() => bed.call(kernel, { ...args, [name]: [] }), InternalError);
        }
      });
    }
    for (const [property, check] of Object.entries({ ...PROPERTIES, ...properties })) it(property, () => check(bed));
    it("leaves no memory", () => assert.equal(device.allocator.stats.inUse, bed.kept));
  });
}
