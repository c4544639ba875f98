/**
 * The table of kernels: that its entries name what there is, and what it tells of a call without any device.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { devicePtr } from "../../src/device/device.ts";
import { type Access, accessesOf, flopsOf } from "../../src/device/kernels/accesses.ts";
import { countingKernels } from "../../src/device/kernels/work.ts";
import { overlapOf } from "../support/overlap.ts";
import { CONSTANTS, type Dim, type KernelTable } from "../../src/device/kernels/signature.ts";
import { type ArgsOf, KERNELS, makeKernels } from "../../src/device/kernels/table.ts";
import { bfloat16, DTYPES, float32, int64 } from "../../src/dtype.ts";

const TABLE: KernelTable = KERNELS;
const STATUS = devicePtr(16);

test("every name in an entry is a value of the kernel, a constant or a dtype", () => {
  for (const [kernel, { values, arrays, flops = [] }] of Object.entries(TABLE)) {
    const isNumber = (name: string): boolean => {
      const kind = values[name];
      const numbers: readonly unknown[] = ["size", "switch", "shape", "strides", "f32"];
      return name in CONSTANTS || numbers.includes(kind) || arrays[name]?.list === true ||
        (typeof kind === "object" && ("atMost" in kind || "divides" in kind));
    };
    const isDtype = (name: string): boolean => {
      const kind = values[name];
      return DTYPES.some((dtype) => dtype.name === name) || kind === "dtype" || kind === "float" ||
        (typeof kind === "object" && ("dtypes" in kind || "widens" in kind));
    };
    const expect = (list: readonly Dim[], holds: (name: string) => boolean): void => {
      for (const name of list.flat()) assert.ok(typeof name === "number" || holds(name), `'${name}' in ${kernel}`);
    };
    expect(flops, isNumber);
    for (const kind of Object.values(values)) {
      if (typeof kind === "string") continue;
      if ("widens" in kind) expect([kind.widens], isDtype);
      else if ("divides" in kind) expect([kind.divides], isNumber);
      else if ("dtypes" in kind) expect(kind.dtypes, isDtype);
    }
    for (const kind of Object.values(arrays)) {
      const { shape, strides = [], transposed, mayBe = [] } = kind;
      expect([...shape, ...strides, ...transposed === undefined ? [] : [transposed]], isNumber);
      expect(["reads" in kind ? kind.reads : "writes" in kind ? kind.writes : kind.updates], isDtype);
      if ("writes" in kind && kind.updatesIf !== undefined) expect([kind.updatesIf], isNumber);
      expect(mayBe, (name) => name in arrays);
    }
    const names = [...Object.keys(values), ...Object.keys(arrays)];
    assert.equal(new Set(names).size, names.length, `${kernel} has two parameters of one name`);
  }
});

const at = devicePtr;
const PRODUCT: ArgsOf<"gemm"> = {
  ...{ dtype: bfloat16, outDtype: float32, transA: false, transB: true, m: 3, n: 5, k: 7, alpha: 1, beta: 0 },
  ...{ lda: 10, ldb: 8, ldc: 6, batch: 2, strideA: 100, strideB: 0, strideC: 20 },
  ...{ a: at(1000), b: at(2000), c: at(3000) },
};

const COPY = {
  dtype: int64,
  shape: [2, 3, 4],
  dstStrides: [1, 2, 6],
  srcStrides: [20, 0, 1],
  dst: at(8),
  src: at(800),
};

test("accessesOf() gives direction, dtype and length of every address, gaps included", () => {
  const access = (parameter: string, args: ArgsOf<"gemm">): unknown => {
    const { direction, dtype, address, byteLength, movedBytes } =
      accessesOf(KERNELS.gemm, args, STATUS).find((one) => one.parameter === parameter) ?? assert.fail(parameter);
    return [direction, dtype, address, byteLength, movedBytes];
  };
  assert.deepEqual(access("a", PRODUCT), ["reads", bfloat16, 1000, (100 + 2 * 10 + 7) * 2, 2 * 3 * 7 * 2]);
  const transposed = { ...PRODUCT, transA: true };
  assert.deepEqual(access("a", transposed), ["reads", bfloat16, 1000, (100 + 6 * 10 + 3) * 2, 2 * 3 * 7 * 2]);
  assert.deepEqual(access("b", PRODUCT), ["reads", bfloat16, 2000, (4 * 8 + 7) * 2, 2 * 5 * 7 * 2]);
  assert.deepEqual(access("c", PRODUCT), ["writes", float32, 3000, (20 + 2 * 6 + 5) * 4, 2 * 3 * 5 * 4]);
  assert.deepEqual(access("c", { ...PRODUCT, beta: 0.5 }), ["updates", float32, 3000, 148, 120]);
  assert.deepEqual(access("a", { ...PRODUCT, batch: 0 }), ["reads", bfloat16, 1000, 0, 0]);

  const lengths = accessesOf(KERNELS.copyStrided, COPY, STATUS).map(({ byteLength }) => byteLength);
  assert.deepEqual(lengths, [(1 + 1 + 4 + 18) * 8, (1 + 20 + 3) * 8]);

  const sum = {
    dtype: bfloat16,
    dstDtype: float32,
    n: 9,
    accumulate: true,
    pastCaches: false,
    dst: at(64),
    sources: [at(256), at(512)],
  };
  assert.deepEqual(
    accessesOf(KERNELS.sumRanks, sum, STATUS).map((one) => [one.parameter, one.direction, one.address, one.byteLength]),
    [["dst", "updates", 64, 36], ["sources", "reads", 256, 18], ["sources", "reads", 512, 18]],
  );

  const ids = { dtype: float32, n: 2, vocab: 3, cols: 4, y: at(64), w: at(256), ids: at(512) };
  const status = accessesOf(KERNELS.embedding, ids, STATUS).at(-1);
  assert.deepEqual([status?.parameter, status?.direction, status?.address], ["status", "updates", 16]);
});

test("countingKernels() counts the bytes of all accesses, updates twice", () => {
  const bytes: number[] = [];
  const kernels = countingKernels((work) => bytes.push(work.bytes));
  const expected = (accesses: readonly Access[]): number =>
    accesses.reduce((sum, { direction, movedBytes }) => sum + (direction === "updates" ? 2 : 1) * movedBytes, 0);
  const updating = { ...PRODUCT, beta: 0.5 };
  const ids = { dtype: float32, n: 2, vocab: 3, cols: 4, y: at(64), w: at(256), ids: at(512) };
  const sources = [at(256), at(512), at(1024)];
  const sum = { dtype: bfloat16, dstDtype: float32, n: 9, accumulate: true, pastCaches: false, dst: at(64), sources };
  const scalar = { ...COPY, shape: [], dstStrides: [], srcStrides: [] };
  const norm = {
    dtype: bfloat16,
    rows: 3,
    cols: 5,
    eps: 1e-5,
    zeroCentered: false,
    y: at(64),
    rstd: at(128),
    x: at(256),
  };
  kernels.gemm(PRODUCT);
  kernels.gemm(updating);
  kernels.embedding(ids);
  kernels.sumRanks(sum);
  kernels.copyStrided(COPY);
  kernels.copyStrided(scalar);
  kernels.rmsNorm(norm);
  kernels.rmsNorm({ ...norm, w: at(512) });
  assert.deepEqual(bytes, [
    expected(accessesOf(KERNELS.gemm, PRODUCT, STATUS)),
    expected(accessesOf(KERNELS.gemm, updating, STATUS)),
    expected(accessesOf(KERNELS.embedding, ids, STATUS)),
    expected(accessesOf(KERNELS.sumRanks, sum, STATUS)),
    expected(accessesOf(KERNELS.copyStrided, COPY, STATUS)),
    expected(accessesOf(KERNELS.copyStrided, scalar, STATUS)),
    expected(accessesOf(KERNELS.rmsNorm, norm, STATUS)),
    expected(accessesOf(KERNELS.rmsNorm, { ...norm, w: at(512) }, STATUS)),
  ]);
  assert.equal(bytes[3], 2 * 9 * 4 + 3 * 9 * 2);
});

test("flopsOf() counts operations", () => {
  assert.equal(flopsOf(KERNELS.gemm, PRODUCT), 2 * 2 * 3 * 5 * 7);
  const shape = { dtype: float32, op: "add", shape: [2, 3, 4], aStrides: [0, 0, 1], bStrides: [12, 4, 1] };
  assert.equal(flopsOf(KERNELS.binary, { ...shape, dst: at(1), a: at(2), b: at(3) }), 24);
  assert.equal(flopsOf(KERNELS.fill, { dtype: float32, n: 5, value: 0, dst: at(1) }), 0);
  const sum = {
    dtype: float32,
    dstDtype: float32,
    n: 9,
    accumulate: false,
    pastCaches: false,
    dst: at(1),
    sources: [at(2), at(3)],
  };
  assert.equal(flopsOf(KERNELS.sumRanks, sum), 18);
});

test("overlapOf() finds writes that meet other arrays, but for those that the entry allows", () => {
  const unary = (dst: number, src: number): unknown => {
    const args = { dtype: float32, op: "neg", n: 4, p0: 0, p1: 0, dst: at(dst), src: at(src) } as const;
    return overlapOf(KERNELS.unary, accessesOf(KERNELS.unary, args, STATUS))?.map(({ parameter }) => parameter);
  };
  assert.equal(unary(100, 200), undefined);
  assert.equal(unary(100, 116), undefined);
  assert.equal(unary(100, 100), undefined, "in place");
  assert.deepEqual(unary(100, 104), ["dst", "src"]);
  const product = (args: ArgsOf<"gemm">): unknown => overlapOf(KERNELS.gemm, accessesOf(KERNELS.gemm, args, STATUS));
  assert.equal(product(PRODUCT), undefined);
  assert.equal(product({ ...PRODUCT, a: at(2000) }), undefined, "both are read");
  assert.notEqual(product({ ...PRODUCT, c: at(1000) }), undefined);
  const [bias, row] = [{ aStrides: [4, 1], bStrides: [0, 1], dst: at(512), a: at(512) }, { aStrides: [0, 1] }];
  const add = { dtype: float32, op: "add", shape: [3, 4], ...bias, b: at(64) };
  assert.equal(overlapOf(KERNELS.binary, accessesOf(KERNELS.binary, add, STATUS)), undefined);
  const broadcast = { ...add, ...row };
  assert.notEqual(overlapOf(KERNELS.binary, accessesOf(KERNELS.binary, broadcast, STATUS)), undefined);
});

test("makeKernels() makes each kernel of its entry", () => {
  const seen: string[] = [];
  const kernels = makeKernels((name, { values }) => () => void seen.push(`${name} ${Object.keys(values).length}`));
  kernels.gemm(PRODUCT);
  kernels.fill({ dtype: float32, n: 1, value: 0, dst: at(1) });
  assert.deepEqual(seen, ["gemm 16", "fill 3"]);
});
