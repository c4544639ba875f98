/**
 * Scenarios of calls whose work may go on while ranks compute and make other calls; each rank runs them.
 *
 * @module
 */
import { float32, int64 } from "../../src/dtype.ts";
import type { Scenarios } from "./planes.ts";
import { checkSum, equal, own, partsOf, place, sleep } from "./values.ts";

/** Scenarios of any number of ranks. */
export const WORK_SCENARIOS: Scenarios = {
  async "reduceScatter() goes on beside other calls, and is waited for in any order"(rank): Promise<void> {
    const { group, device } = rank;
    const n = 30_000;
    const slices = Array.from(
      { length: group.size },
      (_, r) => ({ offset: r * n, length: r % 2 === 0 ? n : n - 4097 }),
    );
    const { offset, length } = own(rank, slices);
    const sums = [1, 2, 3].map((seed) => {
      const parts = partsOf(rank, float32, seed, n * group.size);
      return {
        name: `sum ${seed}`,
        parts,
        src: place(rank, own(rank, parts)),
        dst: place(rank, new Uint8Array(4 * n)),
      };
    });
    const bytes = place(rank, Uint8Array.of(1 + group.rank));
    const gathered = place(rank, new Uint8Array(group.size));
    const other = place(rank, new Uint8Array(4 * n));
    const works = [];
    for (const { name, src, dst } of sums) {
      const arrays = { src, dtype: float32, slices, dst, dstDtype: float32 };
      works.push(group.reduceScatter({ ...arrays, accumulate: false }, name));
      if (group.rank === 1) await sleep(5);
      for (let time = 0; time < 20; time++) device.kernels.fill({ dtype: float32, n, value: time, dst: other });
      group.allGather(gathered, bytes, 1, `bytes beside ${name}`).wait();
      equal(
        device.bytes(gathered, group.size),
        Uint8Array.from(slices.keys(), (r) => 1 + r),
        `gathered beside ${name}`,
      );
    }
    const counted = place(rank, new Uint8Array(BigInt64Array.from(slices.keys(), (r) => BigInt(r)).buffer));
    group.allReduce(counted, group.size, int64, { unit: "counts" }).wait();
    for (const work of works.toReversed()) work.wait();
    for (const work of works) work.wait();
    for (const { name, parts, src, dst } of sums) {
      const cut = parts.map((part) => part.slice(4 * offset, 4 * (offset + length)));
      const sum = { dtype: float32, dstDtype: float32, parts: cut, scale: 1 };
      checkSum(group.sums, sum, device.bytes(dst, 4 * length), name);
      equal(device.bytes(src, own(rank, parts).length), own(rank, parts), `source of ${name}`);
    }
    const expected = new Uint8Array(BigInt64Array.from(slices.keys(), (r) => BigInt(r * group.size)).buffer);
    equal(device.bytes(counted, 8 * group.size), expected, "counts");
    const places = [...sums.flatMap(({ src, dst }) => [src, dst]), bytes, gathered, other, counted];
    for (const ptr of places) device.allocator.free(ptr);
  },
};
