/**
 * What every transport must do, as scenarios that each rank runs. Delays are injected where an ordering rule could be
 * broken.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, float32, int64 } from "../../src/dtype.ts";
import { devicePtr } from "../../src/device/device.ts";
import { encode, equal, place, raggedRuns, type Rank, sleep, sumOf, values } from "./transport_values.ts";

const DTYPES = [float32, bfloat16, int64];

/** Calls that must fail on this rank; returns the message. */
function failure(call: () => void): string {
  try {
    call();
  } catch (error) {
    if (error instanceof Error) return `${error.name}: ${error.message}`;
    throw error;
  }
  throw new Error("no error was thrown");
}

/** A scenario that only some transports can make fail: see who runs it. */
export const TOO_LARGE = "a window that does not fit fails on every rank";

export function tooLarge({ group }: Rank): string {
  const message = failure(() => group.openWindow(Array.from({ length: group.size }, () => 2_000_000), "embedding"));
  assert.deepEqual(group.sum([1], "after"), [group.size]);
  return message;
}

/** The scenarios, by name. Each checks what it can on its rank, and throws if it does not hold. */
export const SCENARIOS: Readonly<Record<string, (rank: Rank) => unknown>> = {
  "allReduce() gives the rank-order sum"(rank): void {
    const { group, device } = rank;
    for (const dtype of DTYPES) {
      for (const [seed, n] of [0, 1, 7, 100, 1000, 5000, 70001].entries()) {
        const scale = dtype === int64 ? 1 : 1 / 3;
        const parts = Array.from({ length: group.size }, (_, r) => encode(dtype, values(seed, r, n)));
        const own = parts[group.rank] ?? new Uint8Array();
        const ptr = place(rank, own);
        group.allReduce(ptr, n, dtype, { scale, label: `sum of ${n}` }).wait();
        equal(device.bytes(ptr, own.length), sumOf(dtype, dtype, parts, scale), `${dtype.name} ${n}`);
        device.allocator.free(ptr);
      }
    }
  },

  "allReduce() gives the largest value"(rank): void {
    const { group, device } = rank;
    for (const n of [1, 100, 9000]) {
      const parts = Array.from({ length: group.size }, (_, r) => values(n, r, n));
      const ptr = place(rank, encode(float32, parts[group.rank] ?? new Float32Array()));
      group.allReduce(ptr, n, float32, { op: "max", label: "largest" }).wait();
      const largest = Float32Array.from({ length: n }, (_, i) => Math.max(...parts.map((part) => part[i] ?? 0)));
      equal(device.bytes(ptr, 4 * n), encode(float32, largest), `max of ${n}`);
      device.allocator.free(ptr);
    }
    assert.throws(() => group.allReduce(devicePtr(0), 1, int64, { op: "max", label: "x" }), { name: "DTypeError" });
  },

  "reduceScatter() sums ragged runs"(rank): void {
    const { group, device } = rank;
    for (let seed = 1; seed <= 24; seed++) {
      const dtype = DTYPES[seed % 3] ?? float32;
      const dstDtype = dtype === bfloat16 && seed % 2 === 0 ? float32 : dtype;
      const { runs, total } = raggedRuns(seed, group.size, seed % 4 === 0 ? 40000 : 300);
      const parts = Array.from({ length: group.size }, (_, r) => encode(dtype, values(seed, r, total)));
      const src = place(rank, parts[group.rank] ?? new Uint8Array());
      const { offset, length } = runs[group.rank] ?? { offset: 0, length: 0 };
      const accumulate = seed % 5 === 0 && dtype !== int64;
      const base = encode(dstDtype, values(seed + 99, group.rank, length));
      const dst = place(rank, base);
      const scale = dtype === int64 ? 1 : 0.7;
      group.reduceScatter({ src, dtype, runs, dst, dstDtype, scale, accumulate }, `unit ${seed}`).wait();
      const slices = parts.map((part) => part.slice(offset * dtype.byteLength, (offset + length) * dtype.byteLength));
      const expected = sumOf(dtype, dstDtype, slices, scale, accumulate ? base : undefined);
      equal(device.bytes(dst, expected.length), expected, `seed ${seed}`);
      equal(device.bytes(src, parts[0]?.length ?? 0), parts[group.rank] ?? new Uint8Array(), `source of ${seed}`);
      device.allocator.free(src);
      device.allocator.free(dst);
    }
  },

  "reduceScatter() writes into its own run"(rank): void {
    const { group, device } = rank;
    const n = 20000;
    const runs = Array.from({ length: group.size }, (_, r) => ({ offset: r * n, length: n }));
    const parts = Array.from({ length: group.size }, (_, r) => encode(float32, values(5, r, n * group.size)));
    const src = place(rank, parts[group.rank] ?? new Uint8Array());
    const dst = devicePtr(src + 4 * n * group.rank);
    const shape = { src, dtype: float32, runs, dstDtype: float32, scale: 1, accumulate: false };
    group.reduceScatter({ ...shape, dst }, "in place").wait();
    const slices = parts.map((part) => part.slice(4 * n * group.rank, 4 * n * (group.rank + 1)));
    equal(device.bytes(dst, 4 * n), sumOf(float32, float32, slices, 1), "in place");
    const shifted = devicePtr(dst + 4);
    assert.throws(() => group.reduceScatter({ ...shape, dst: shifted }, "shifted"), /cuts into 'src'/);
  },

  "allGather(), broadcast() and exchange() move bytes"(rank): void {
    const { group, device } = rank;
    for (const n of [0, 1, 255, 70000]) {
      const parts = Array.from({ length: group.size }, (_, r) => encode(float32, values(n, r, n)).subarray(0, n * 3));
      const own = parts[group.rank] ?? new Uint8Array();
      const src = place(rank, own);
      const dst = device.allocator.allocate(group.size * own.length, "test");
      group.allGather(dst, src, own.length, "all").wait();
      parts.forEach((part, r) => equal(device.bytes(devicePtr(dst + r * own.length), own.length), part, `part ${r}`));
      for (let root = 0; root < group.size; root++) {
        device.copyIn(src, own);
        group.broadcast(src, own.length, root, "one").wait();
        equal(device.bytes(src, own.length), parts[root] ?? own, `root ${root}`);
      }
      const ragged = parts.map((part, r) => part.subarray(0, Math.floor(part.length / (r + 1))));
      const received = group.exchange(ragged[group.rank] ?? own, "ragged");
      ragged.forEach((part, r) => equal(received[r] ?? new Uint8Array(), part, `exchange ${r}`));
      device.allocator.free(src);
      device.allocator.free(dst);
    }
    assert.deepEqual(
      group.exchangeText(`π${group.rank}`, "text"),
      Array.from({ length: group.size }, (_, r) => `π${r}`),
    );
    const sums = group.sum([0.1 * (group.rank + 1), group.rank], "sums");
    let tenth = 0;
    for (let r = 0; r < group.size; r++) tenth += 0.1 * (r + 1);
    assert.deepEqual(sums, [tenth, group.size * (group.size - 1) / 2]);
    assert.deepEqual(group.sum([], "none"), []);
  },

  "barrier() waits for all"(rank): void {
    const { group } = rank;
    // Wall clocks of ranks of one machine agree well enough for 100 ms.
    for (let late = 0; late < group.size; late++) {
      if (late === group.rank) sleep(60);
      const arrived = Date.now();
      group.barrier("late");
      const left = Date.now();
      const times = group.exchangeText(String(arrived), "arrivals").map(Number);
      assert.ok(left >= Math.max(...times) - 2, `left at ${left}, before ${times}`);
    }
  },

  "gather() waits for the published epoch"(rank): void {
    const { group, device } = rank;
    const bytes = Array.from({ length: group.size }, (_, r) => r === 1 ? 0 : 4000 + 4 * r);
    const window = group.openWindow(bytes, "unit");
    const total = bytes.reduce((sum, n) => sum + n, 0);
    const dst = device.allocator.allocate(total, "test");
    const offsets = bytes.map((_, r) => bytes.slice(0, r).reduce((sum, n) => sum + n, 0));
    const check = (epoch: number): void => {
      window.gather(dst, offsets, `unit (epoch ${epoch})`).wait();
      bytes.forEach((n, r) => {
        const expected = new Uint8Array(n).fill(epoch === 0 ? 0 : epoch * 16 + r);
        equal(device.bytes(devicePtr(dst + (offsets[r] ?? 0)), n), expected, `epoch ${epoch} of rank ${r}`);
      });
    };
    check(0);
    for (let epoch = 1; epoch <= 6; epoch++) {
      window.beginWrite();
      // A slow writer: peers that do not wait see the epoch before.
      if (epoch % group.size === group.rank) sleep(25);
      device.bytes(window.pointer, bytes[group.rank] ?? 0).fill(epoch * 16 + group.rank);
      window.endWrite();
      check(epoch);
      check(epoch);
    }
    window.dispose();
    device.allocator.free(dst);
  },

  "beginWrite() waits for readers"(rank): void {
    const { group, device } = rank;
    const bytes = Array.from({ length: group.size }, () => 100_000);
    const window = group.openWindow(bytes, "unit");
    const dst = device.allocator.allocate(100_000 * group.size, "test");
    for (let epoch = 1; epoch <= 6; epoch++) {
      window.beginWrite();
      device.bytes(window.pointer, 100_000).fill(epoch);
      window.endWrite();
      // A slow reader: writers that do not wait put the next epoch under it.
      if (epoch % group.size === group.rank) sleep(25);
      window.gather(dst, bytes.map((n, r) => n * r), "unit").wait();
      equal(device.bytes(dst, 100_000 * group.size), new Uint8Array(100_000 * group.size).fill(epoch), `${epoch}`);
    }
    window.dispose();
    device.allocator.free(dst);
  },

  "windows open and close in turn"(rank): void {
    const { group, device } = rank;
    const before = device.allocator.stats.inUse;
    for (let turn = 0; turn < 5; turn++) {
      const windows = [0, 1, 2].map((w) =>
        group.openWindow(Array.from({ length: group.size }, (_, r) => 256 * (r + w)), `w${w}`)
      );
      for (const [w, window] of windows.entries()) {
        const own = window.byteLengths[group.rank] ?? 0;
        equal(device.bytes(window.pointer, own), new Uint8Array(own), `window ${w} begins with zeros`);
        window.beginWrite();
        device.bytes(window.pointer, own).fill(turn * 3 + w + 1);
        window.endWrite();
        if (turn % group.size === group.rank) sleep(5);
        const dst = device.allocator.allocate(256 * 8, "test");
        const peer = (group.rank + 1) % group.size;
        const offsets = window.byteLengths.map((_, r) => r === peer ? 0 : 1024);
        window.gather(dst, offsets, "peer").wait();
        const n = Math.min(1024, window.byteLengths[peer] ?? 0);
        if (peer !== group.rank) equal(device.bytes(dst, n), new Uint8Array(n).fill(turn * 3 + w + 1), `window ${w}`);
        device.allocator.free(dst);
      }
      for (const window of turn % 2 === 0 ? windows : windows.reverse()) window.dispose();
    }
    assert.equal(device.allocator.stats.inUse, before);
  },

  "the aperture is reused after its consumers"(rank): void {
    const { group, device } = rank;
    const n = 60000;
    for (let turn = 0; turn < 4; turn++) {
      // Consumers that stop in the middle of a sum: producers that do not wait overwrite what is being added.
      let sums = 0;
      device.onSum = () => {
        if (turn % group.size === group.rank && sums++ < 4) sleep(12);
      };
      const parts = Array.from({ length: group.size }, (_, r) => encode(float32, values(turn, r, n)));
      const ptr = place(rank, parts[group.rank] ?? new Uint8Array());
      group.allReduce(ptr, n, float32, { label: "slow sum" }).wait();
      equal(device.bytes(ptr, 4 * n), sumOf(float32, float32, parts, 1), `turn ${turn}`);
      device.allocator.free(ptr);
    }
    device.onSum = () => {};
    // Nothing but the aperture's own order holds back who only sends.
    for (let turn = 0; turn < 40; turn++) {
      const root = Math.floor(turn / 20) % group.size;
      if (turn % 20 === 10 && group.rank !== root) sleep(20);
      const ptr = place(rank, new Uint8Array(3000).fill(root === group.rank ? turn + 1 : 0));
      group.broadcast(ptr, 3000, root, "many small").wait();
      equal(device.bytes(ptr, 3000), new Uint8Array(3000).fill(turn + 1), `broadcast ${turn}`);
      device.allocator.free(ptr);
    }
  },

  "split() makes groups that work apart"(rank): void {
    const { group, device } = rank;
    const { size } = group;
    const columns = size % 2 === 0 ? 2 : 1;
    const row = Math.floor(group.rank / columns);
    const ranks = Array.from({ length: columns }, (_, c) => row * columns + c);
    const down = Array.from({ length: size / columns }, (_, r) => r * columns + group.rank % columns);
    const across = group.split(ranks, "shard");
    const along = group.split(down, "replicate");
    assert.deepEqual([across.size, across.worldRanks], [columns, ranks]);
    assert.deepEqual(across.sum([group.rank], "ranks"), [ranks.reduce((sum, r) => sum + r, 0)]);
    assert.deepEqual(along.sum([group.rank], "ranks"), [down.reduce((sum, r) => sum + r, 0)]);
    const window = across.openWindow(ranks.map((r) => 100 + r), "unit");
    window.beginWrite();
    device.bytes(window.pointer, 100 + group.rank).fill(group.rank + 1);
    window.endWrite();
    const dst = device.allocator.allocate(1024, "test");
    window.gather(dst, ranks.map((_, c) => c * 200), "unit").wait();
    ranks.forEach((r, c) =>
      equal(device.bytes(devicePtr(dst + c * 200), 100 + r), new Uint8Array(100 + r).fill(r + 1), "sub-group gather")
    );
    window.dispose();
    const inner = across.split([across.rank], "alone");
    assert.equal(inner.size, 1);
    assert.deepEqual(inner.sum([3], "three"), [3]);
    assert.deepEqual(group.sum([1], "ones"), [size]);
  },

  "throwTogether() fails on every rank"(rank): unknown {
    const { group } = rank;
    group.throwTogether(undefined, "nothing");
    const own = group.rank === group.size - 1 ? new RangeError("row 7 is too long") : undefined;
    const message = failure(() => group.throwTogether(own, "loading"));
    assert.match(
      message,
      new RegExp(`CollectiveError: Rank ${group.rank} .*rank ${group.size - 1} failed: RangeError: row 7`),
    );
    // It is no abort: the ranks may go on together.
    assert.deepEqual(group.sum([1], "after"), [group.size]);
    return message;
  },

  "different calls name both on every rank"(rank): unknown {
    const { group, device } = rank;
    const ptr = device.allocator.allocate(4096, "test");
    group.barrier("before");
    if (group.rank === 1) sleep(20);
    return failure(() => {
      if (group.rank === 1) group.barrier("epoch end");
      else group.allReduce(ptr, 10, float32, { label: "loss" }).wait();
      group.barrier("never");
    });
  },

  "different sizes name both on every rank"(rank): unknown {
    const { group, device } = rank;
    const ptr = device.allocator.allocate(4096, "test");
    if (group.rank === 0) sleep(20);
    return failure(() => {
      group.allReduce(ptr, group.rank === 0 ? 10 : 11, float32, { label: "norm" }).wait();
      group.barrier("never");
    });
  },

  "different labels of gathers name both on every rank"(rank): unknown {
    const { group, device } = rank;
    const windows = [7, 8].map((i) => group.openWindow(Array.from({ length: group.size }, () => 64), `layers.${i}`));
    const dst = device.allocator.allocate(64 * group.size, "test");
    return failure(() => {
      const which = group.rank === 0 ? 0 : 1;
      windows[which]?.gather(
        dst,
        windows.map((_, r) => r * 64).concat([0, 0, 0]).slice(0, group.size),
        `layers.${7 + which} (forward)`,
      ).wait();
      group.barrier("after");
    });
  },

  "abort() stops the others with its reason"(rank): unknown {
    const { group } = rank;
    group.barrier("before");
    if (group.rank === 0) {
      sleep(20);
      group.abort("the loss is NaN at step 3");
    }
    return failure(() => group.barrier("after"));
  },

  "a rank that left is named"(rank): unknown {
    const { group } = rank;
    group.barrier("before");
    if (group.rank === 0) {
      group.dispose();
      return failure(() => group.barrier("after dispose"));
    }
    return failure(() => group.barrier("after"));
  },

  "a rank runs ahead by many calls"(rank): void {
    const { group, device } = rank;
    const bytes = Array.from({ length: group.size }, () => 16);
    const window = group.openWindow(bytes, "unit");
    const dst = device.allocator.allocate(16 * group.size, "test");
    for (let i = 0; i < 500; i++) {
      if (i % 100 === 0 && group.rank === i / 100 % group.size) sleep(10);
      window.gather(dst, bytes.map((n, r) => n * r), `unit (${i % 3})`).wait();
    }
    window.dispose();
  },
};
