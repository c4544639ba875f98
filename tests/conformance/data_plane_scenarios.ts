/**
 * The scenarios that every data plane must pass; each rank runs them. Delays are injected where an ordering rule could be
 * broken. Every rank makes the inputs of all ranks from their number, so it can check results by itself.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, float32, int64 } from "../../src/dtype.ts";
import { devicePtr } from "../../src/device/device.ts";
import { checkSum, encode, equal, own, partsOf, place, raggedSlices, sleep, values } from "./values.ts";
import type { Scenarios } from "./planes.ts";

const DTYPES = [float32, bfloat16, int64];

/** Scenarios of any number of ranks. */
export const DATA_SCENARIOS: Scenarios = {
  "allReduce() gives the sum"(rank): void {
    const { group, device } = rank;
    for (const dtype of DTYPES) {
      for (const [seed, n] of [0, 1, 7, 100, 1000, 5000, 70001].entries()) {
        const scale = dtype === int64 ? 1 : 1 / 3;
        const parts = partsOf(rank, dtype, seed, n);
        const ptr = place(rank, own(rank, parts));
        using factor = device.scalars.make(scale);
        group.allReduce(ptr, n, dtype, { ...dtype === int64 ? {} : { scale: factor }, unit: `sum of ${n}` }).wait();
        const got = device.bytes(ptr, n * dtype.byteLength);
        checkSum(group.sums, { dtype, dstDtype: dtype, parts, scale }, got, `${dtype.name} ${n}`);
        device.allocator.free(ptr);
      }
    }
  },

  "allReduce() gives the largest value"(rank): void {
    const { group, device } = rank;
    for (const n of [1, 100, 9000]) {
      const parts = Array.from({ length: group.size }, (_, r) => values(n, r, n));
      const ptr = place(rank, encode(float32, own(rank, parts)));
      group.allReduce(ptr, n, float32, { op: "max", unit: "largest" }).wait();
      const largest = Float32Array.from({ length: n }, (_, i) => Math.max(...parts.map((part) => part[i] ?? 0)));
      equal(device.bytes(ptr, 4 * n), encode(float32, largest), `max of ${n}`);
      device.allocator.free(ptr);
    }
    assert.throws(() => group.allReduce(devicePtr(0), 1, int64, { op: "max", unit: "x" }), { name: "DTypeError" });
  },

  "reduceScatter() sums ragged slices"(rank): void {
    const { group, device } = rank;
    for (let seed = 1; seed <= 24; seed++) {
      const dtype = DTYPES[seed % 3] ?? float32;
      const dstDtype = dtype === bfloat16 && seed % 2 === 0 ? float32 : dtype;
      const { slices, total } = raggedSlices(seed, group.size, seed % 4 === 0 ? 40000 : 300);
      const parts = partsOf(rank, dtype, seed, total);
      const src = place(rank, own(rank, parts));
      const { offset, length } = own(rank, slices);
      const accumulate = seed % 5 === 0 && dtype !== int64;
      const base = encode(dstDtype, values(seed + 99, group.rank, length));
      const dst = place(rank, base);
      const scale = dtype === int64 ? 1 : 0.7;
      using factor = device.scalars.make(scale);
      const scaled = dtype === int64 ? {} : { scale: factor };
      group.reduceScatter({ src, dtype, slices, dst, dstDtype, ...scaled, accumulate }, `unit ${seed}`).wait();
      const cut = parts.map((part) => part.slice(offset * dtype.byteLength, (offset + length) * dtype.byteLength));
      const sum = { dtype, dstDtype, parts: cut, scale, ...accumulate ? { base } : {} };
      checkSum(group.sums, sum, device.bytes(dst, length * dstDtype.byteLength), `seed ${seed}`);
      equal(device.bytes(src, own(rank, parts).length), own(rank, parts), `source of ${seed}`);
      device.allocator.free(src);
      device.allocator.free(dst);
    }
  },

  "reduceScatter() writes into its own slice"(rank): void {
    const { group, device } = rank;
    const n = 20000;
    const slices = Array.from({ length: group.size }, (_, r) => ({ offset: r * n, length: n }));
    const parts = partsOf(rank, float32, 5, n * group.size);
    const src = place(rank, own(rank, parts));
    const dst = devicePtr(src + 4 * n * group.rank);
    const shape = { src, dtype: float32, slices, dstDtype: float32, accumulate: false };
    group.reduceScatter({ ...shape, dst }, "in place").wait();
    const cut = parts.map((part) => part.slice(4 * n * group.rank, 4 * n * (group.rank + 1)));
    const sum = { dtype: float32, dstDtype: float32, parts: cut, scale: 1 };
    checkSum(group.sums, sum, device.bytes(dst, 4 * n), "in place");
    const shifted = devicePtr(dst + 4);
    assert.throws(() => group.reduceScatter({ ...shape, dst: shifted }, "shifted"), /cuts into 'src'/);
  },

  "allGather() and broadcast() move bytes"(rank): void {
    const { group, device } = rank;
    for (const n of [0, 1, 255, 70000]) {
      const parts = partsOf(rank, float32, n, n).map((part) => part.subarray(0, n * 3));
      const mine = own(rank, parts);
      const src = place(rank, mine);
      const dst = device.allocator.allocate(group.size * mine.length, "test");
      group.allGather(dst, src, mine.length, "all").wait();
      parts.forEach((part, r) => equal(device.bytes(devicePtr(dst + r * mine.length), mine.length), part, `part ${r}`));
      for (let root = 0; root < group.size; root++) {
        device.copyIn(src, mine);
        group.broadcast(src, mine.length, root, "one").wait();
        equal(device.bytes(src, mine.length), parts[root] ?? mine, `root ${root}`);
      }
      device.allocator.free(src);
      device.allocator.free(dst);
    }
  },

  "gather() gives what was published last"(rank): void {
    const { group, device } = rank;
    const bytes = Array.from({ length: group.size }, (_, r) => r === 1 ? 0 : 4000 + 4 * r);
    const window = group.openWindow(bytes, "unit");
    const total = bytes.reduce((sum, n) => sum + n, 0);
    const dst = device.allocator.allocate(total, "test");
    const offsets = bytes.map((_, r) => bytes.slice(0, r).reduce((sum, n) => sum + n, 0));
    const check = (epoch: number): void => {
      window.gather(dst, offsets, "unit", "forward").wait();
      bytes.forEach((n, r) => {
        const expected = new Uint8Array(n).fill(epoch === 0 ? 0 : epoch * 16 + r);
        equal(device.bytes(devicePtr(dst + (offsets[r] ?? 0)), n), expected, `epoch ${epoch} of rank ${r}`);
      });
    };
    check(0);
    for (let epoch = 1; epoch <= 6; epoch++) {
      window.beginWrite("unit");
      // A slow writer: peers that do not wait see the epoch before.
      if (epoch % group.size === group.rank) sleep(25);
      device.fill(window.pointer, own(rank, bytes), epoch * 16 + group.rank);
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
      window.beginWrite("unit");
      device.fill(window.pointer, 100_000, epoch);
      window.endWrite();
      // A slow reader: writers that do not wait put the next epoch under it.
      if (epoch % group.size === group.rank) sleep(25);
      window.gather(dst, bytes.map((n, r) => n * r), "unit", "forward").wait();
      equal(device.bytes(dst, 100_000 * group.size), new Uint8Array(100_000 * group.size).fill(epoch), `${epoch}`);
    }
    window.dispose();
    device.allocator.free(dst);
  },

  "gathers that are begun go on beside other calls, and end before the next write"(rank): void {
    const { group, device } = rank;
    const lengths = [4096, 300_000];
    const windows = lengths.map((n) => group.openWindow(new Array(group.size).fill(n), `unit ${n}`));
    const gathered = lengths.map((n) => device.allocator.allocate(n * group.size, "test"));
    const n = 70_000;
    const slices = Array.from({ length: group.size }, (_, r) => ({ offset: r * n, length: n }));
    const src = device.allocator.allocate(4 * n * group.size, "test");
    const dst = device.allocator.allocate(4 * n, "test");
    for (let epoch = 1; epoch <= 4; epoch++) {
      for (const [w, window] of windows.entries()) {
        window.beginWrite(`unit ${w}`);
        device.fill(window.pointer, own(rank, window.byteLengths), 16 * epoch + 4 * w + group.rank);
        window.endWrite();
      }
      const works = windows.map((window, w) =>
        window.gather(gathered[w] ?? assert.fail(), window.byteLengths.map((n, r) => n * r), `unit ${w}`, "forward")
      );
      device.kernels.fill({ dtype: float32, n: n * group.size, value: epoch, dst: src });
      const sum = { src, dtype: float32, slices, dst, dstDtype: float32, accumulate: false };
      group.reduceScatter(sum, "beside").wait();
      equal(device.bytes(dst, 4 * n), new Uint8Array(new Float32Array(n).fill(epoch * group.size).buffer), "the sum");
      group.barrier("beside");
      // The last epoch's gather of the second window is not waited for here: the next write does so.
      for (const [w, work] of epoch === 3 ? [[0, works[0]] as const] : works.toReversed().entries()) {
        work?.wait();
        const which = epoch === 3 ? w : works.length - 1 - w;
        const length = lengths[which] ?? assert.fail();
        const values = device.bytes(gathered[which] ?? assert.fail(), length * group.size);
        for (let r = 0; r < group.size; r++) {
          const expected = new Uint8Array(length).fill(16 * epoch + 4 * which + r);
          equal(values.subarray(r * length, (r + 1) * length), expected, `epoch ${epoch}, unit ${which} of rank ${r}`);
        }
      }
    }
    for (const window of windows) window.dispose();
    for (const ptr of [...gathered, src, dst]) device.allocator.free(ptr);
  },

  "windows are refused in a wrong order"({ group, device }): void {
    const window = group.openWindow(new Array(group.size).fill(16), "unit");
    const dst = device.allocator.allocate(16 * group.size, "test");
    assert.throws(() => window.endWrite(), /Cannot end writing a window as it is readable, not being written/);
    window.beginWrite("unit");
    const offsets = new Array<number>(group.size).fill(0);
    assert.throws(
      () => window.gather(dst, offsets, "unit", "forward"),
      /Cannot gather window 'unit' as it is being wri/,
    );
    window.endWrite();
    assert.throws(() => window.gather(dst, [], "unit", "forward"), /Offsets of 'unit': one for each of \d+ ranks/);
    window.dispose();
    window.dispose();
    assert.throws(() => window.beginWrite("unit"), { name: "UseAfterDisposeError" });
    device.allocator.free(dst);
  },

  "windows are disposed in other orders on every rank"(rank): void {
    const { group, device } = rank;
    const before = device.allocator.stats.inUse;
    for (let turn = 0; turn < 6; turn++) {
      const windows = [0, 1, 2, 3].map((w) =>
        group.openWindow(Array.from({ length: group.size }, (_, r) => 256 * (r + w)), `w${w}`)
      );
      for (const [w, window] of windows.entries()) {
        const bytes = own(rank, window.byteLengths);
        equal(device.bytes(window.pointer, bytes), new Uint8Array(bytes), `window ${w} begins with zeros`);
        // Windows that are written unequally often: their epochs must not be taken for each other's.
        for (let write = 0; write <= (turn + w) % 3; write++) {
          window.beginWrite(`w${w}`);
          device.fill(window.pointer, bytes, turn * 4 + w + 1);
          window.endWrite();
        }
        if (turn % group.size === group.rank) sleep(5);
        const peer = (group.rank + 1) % group.size;
        const dst = device.allocator.allocate(256 * 16, "test");
        window.gather(dst, window.byteLengths.map((_, r) => r === peer ? 0 : 2048), `w${w}`, "forward").wait();
        const n = Math.min(2048, window.byteLengths[peer] ?? 0);
        if (peer !== group.rank) equal(device.bytes(dst, n), new Uint8Array(n).fill(turn * 4 + w + 1), `window ${w}`);
        device.allocator.free(dst);
      }
      // Some are left open while the next are opened, others on each rank.
      const order = windows.map((_, w) => windows[(w + group.rank + turn) % windows.length]);
      for (const window of group.rank % 2 === 0 ? order : order.reverse()) window?.dispose();
    }
    assert.equal(device.allocator.stats.inUse, before);
  },

  "more windows are open than any table had room for"(rank): void {
    const { group, device } = rank;
    const before = device.allocator.stats.inUse;
    const windows = Array.from(
      { length: 1100 },
      (_, w) => group.openWindow(new Array(group.size).fill(64), `unit ${w}`),
    );
    const dst = device.allocator.allocate(64 * group.size, "test");
    for (const w of [0, 500, 1023, 1024, 1025, 1099]) {
      const window = windows[w] ?? assert.fail();
      window.beginWrite(`unit ${w}`);
      device.fill(window.pointer, 64, w % 251 + group.rank);
      window.endWrite();
    }
    for (const w of [1099, 1025, 1024, 1023, 500, 0]) {
      windows[w]?.gather(dst, Array.from({ length: group.size }, (_, r) => 64 * r), `unit ${w}`, "forward").wait();
      for (let r = 0; r < group.size; r++) {
        equal(
          device.bytes(devicePtr(dst + 64 * r), 64),
          new Uint8Array(64).fill(w % 251 + r),
          `unit ${w} of rank ${r}`,
        );
      }
    }
    for (const window of group.rank === 0 ? windows : windows.reverse()) window.dispose();
    device.allocator.free(dst);
    assert.equal(device.allocator.stats.inUse, before);
  },

  "staging is used again only after its consumers"(rank): void {
    const { group, device } = rank;
    const n = 60000;
    for (let turn = 0; turn < 4; turn++) {
      // Consumers that stop in the middle of a sum: producers that do not wait overwrite what is being added.
      let sums = 0;
      device.onSum = () => {
        if (turn % group.size === group.rank && sums++ < 4) sleep(12);
      };
      const parts = partsOf(rank, float32, turn, n);
      const ptr = place(rank, own(rank, parts));
      group.allReduce(ptr, n, float32, { unit: "slow sum" }).wait();
      const sum = { dtype: float32, dstDtype: float32, parts, scale: 1 };
      checkSum(group.sums, sum, device.bytes(ptr, 4 * n), `turn ${turn}`);
      device.allocator.free(ptr);
    }
    device.onSum = () => {};
    // Nothing but the order of staging itself holds back who only sends.
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
    window.beginWrite("unit");
    device.fill(window.pointer, 100 + group.rank, group.rank + 1);
    window.endWrite();
    const dst = device.allocator.allocate(1024, "test");
    window.gather(dst, ranks.map((_, c) => c * 200), "unit", "forward").wait();
    ranks.forEach((r, c) =>
      equal(device.bytes(devicePtr(dst + c * 200), 100 + r), new Uint8Array(100 + r).fill(r + 1), "sub-group gather")
    );
    window.dispose();
    const inner = across.split([across.rank], "alone");
    assert.equal(inner.size, 1);
    assert.deepEqual(inner.sum([3], "three"), [3]);
    // Groups come and go, in other orders on every rank.
    for (let turn = 0; turn < 20; turn++) {
      const pair = [group.split(ranks, "again"), group.split(down, "again")];
      for (const child of pair) {
        const ptr = place(rank, encode(float32, Float32Array.of(1)));
        child.allReduce(ptr, 1, float32, { unit: "ones" }).wait();
        equal(device.bytes(ptr, 4), encode(float32, Float32Array.of(child.size)), `turn ${turn}`);
        device.allocator.free(ptr);
      }
      for (const child of group.rank % 2 === 0 ? pair : pair.reverse()) child.dispose();
    }
    assert.deepEqual(group.sum([1], "ones"), [size]);
    device.allocator.free(dst);
  },
};

/** Scenarios of two ranks or more. */
export const DATA_SCENARIOS_OF_SEVERAL: Scenarios = {
  "units that are written in another order are named at once, whatever they were called before"(rank): void {
    const { group, device } = rank;
    // As with the documented order of calls: windows are opened before their units have names.
    const windows = [0, 1].map(() => group.openWindow(new Array(group.size).fill(64), "Layer"));
    group.barrier("all are open");
    const order = group.rank === 1 ? [1, 0] : [0, 1];
    const started = performance.now();
    assert.throws(() => {
      for (const unit of order) {
        windows[unit]?.beginWrite(`layers.${unit}`);
        windows[unit]?.endWrite();
      }
      group.barrier("after the step");
    }, (error: Error) => {
      assert.match(error.message, /ranks make different calls/);
      assert.match(error.message, /rank 1 calls write 'layers\.1' \(update, \d+ bytes\)/);
      assert.match(error.message, /rank [02-9].* calls write 'layers\.0' \(update, \d+ bytes\)/);
      return true;
    });
    assert.ok(performance.now() - started < 5000, "it waited");
    device.synchronize();
  },
};
