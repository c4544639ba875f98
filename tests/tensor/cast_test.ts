/**
 * `to()` between every pair of dtypes that are cast, against PyTorch by the fixture of `tests/parity/make_casts.py`; and what PyTorch
 * leaves to the processor.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { dtypeFrom, float32, int32, uint8 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";

/** Conversions of one dtype to another. */
interface Cast {
  readonly src: string;
  readonly dst: string;
  readonly from: readonly (number | string)[];
  readonly to: readonly (number | string)[];
}

const file = new URL("../fixtures/ops/casts.json", import.meta.url);
const { cases }: { cases: readonly Cast[] } = JSON.parse(readFileSync(file, "utf8"));
const NAMED: ReadonlyMap<number | string, number> = new Map([["inf", Infinity], ["-inf", -Infinity], ["nan", NaN]]);
const numbers = (list: readonly (number | string)[]): number[] =>
  list.map((value) => NAMED.get(value) ?? Number(value));

const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
after(() => device.dispose());

test("to() gives PyTorch's values for every pair of dtypes", () => {
  assert.equal(cases.length, 25);
  for (const { src, dst, from, to } of cases) {
    using _frame = scope();
    const got = tensor(device, numbers(from), { dtype: dtypeFrom(src) }).to(dtypeFrom(dst)).toArray();
    numbers(to).forEach((value, i) => assert.equal(got[i], value, `${src} ${from[i]} to ${dst}`));
  }
});

test("to() integers of NaN gives 0, and beyond int32 its nearer end, of which uint8 is the low byte", () => {
  using _frame = scope();
  const x = tensor(device, [NaN, 3e9, -3e9, Infinity, -Infinity], { dtype: float32 });
  const ends = [0, 2147483647, -2147483648, 2147483647, -2147483648];
  assert.deepEqual([...x.to(int32).toArray()], ends);
  assert.deepEqual([...x.to(uint8).toArray()], [0, 255, 0, 255, 0]);
  assert.deepEqual([...x.to(int32).to(uint8).toArray()], [0, 255, 0, 255, 0]);
});
