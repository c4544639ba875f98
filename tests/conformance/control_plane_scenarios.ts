/**
 * The scenarios that every control plane must pass; each rank runs them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32 } from "../../src/dtype.ts";
import type { Scenarios } from "./planes.ts";
import { equal, place, type Rank, sleep, values } from "./values.ts";

/** Fails unless `call` throws what matches all patterns. */
async function failsWith(call: () => unknown, ...patterns: readonly RegExp[]): Promise<void> {
  try {
    await call();
  } catch (error) {
    for (const pattern of patterns) assert.match(String(error), pattern);
    return;
  }
  assert.fail("no error was thrown");
}

/** Scenarios of any number of ranks. */
export const CONTROL_SCENARIOS: Scenarios = {
  "exchange() gives all ranks the bytes of each"({ group }): void {
    for (const n of [0, 1, 255, 5000, 70_000]) {
      const parts = Array.from(
        { length: group.size },
        (_, r) => new Uint8Array(values(n, r, Math.ceil(n / (r + 1))).buffer),
      );
      const received = group.exchange(parts[group.rank] ?? assert.fail(), "ragged");
      parts.forEach((part, r) => equal(received[r] ?? assert.fail(), part, `part ${r} of ${n}`));
    }
    const texts = Array.from({ length: group.size }, (_, r) => `π${r}`);
    assert.deepEqual(group.exchangeText(`π${group.rank}`, "text"), texts);
    const sums = group.sum([0.1 * (group.rank + 1), group.rank], "sums");
    let tenths = 0;
    for (let r = 0; r < group.size; r++) tenths += 0.1 * (r + 1);
    assert.deepEqual(sums, [tenths, group.size * (group.size - 1) / 2]);
    assert.deepEqual(group.sum([], "none"), []);
  },

  "exchange() keeps messages apart when ranks are late"({ group }): void {
    for (let turn = 0; turn < 60; turn++) {
      if (turn % 7 === group.rank) sleep(3);
      const texts = group.exchangeText(`${turn}:${group.rank}`, "turn");
      assert.deepEqual(texts, Array.from({ length: group.size }, (_, r) => `${turn}:${r}`));
    }
  },

  "barrier() waits for all"({ group }): void {
    // Wall clocks of ranks of one machine agree well enough for 60 ms.
    for (let late = 0; late < group.size; late++) {
      if (late === group.rank) sleep(60);
      const arrived = Date.now();
      group.barrier("late");
      const left = Date.now();
      const times = group.exchangeText(String(arrived), "arrivals").map(Number);
      assert.ok(left >= Math.max(...times) - 2, `left at ${left}, before ${times}`);
    }
  },

  "flightRecord() has the last calls of every rank"({ group, device }): void {
    group.step = 4;
    const ptr = device.allocator.allocate(1000, "test");
    group.allReduce(ptr, 100, float32, { unit: "layers.7", phase: "backward" }).wait();
    for (let i = 0; i < 70; i++) group.barrier(`turn ${i}`);
    const { group: name, rank, ranks } = group.flightRecord();
    assert.deepEqual([name, rank, ranks.length], [group.name, group.worldRanks[group.rank], group.size]);
    for (const { calls, state } of ranks) {
      assert.ok(["waiting", "running"].includes(state));
      // A rank may be past the turns by now: then its oldest call is being written over.
      const turns = calls.filter(({ kind, unit }) => kind === "barrier" && unit !== "looked")
        .map(({ unit }) => Number(unit.slice(5)));
      assert.ok(calls.length >= 63 && turns.length >= 62, `${turns}`);
      assert.deepEqual(turns, turns.map((_, i) => (turns[0] ?? NaN) + i));
    }
    group.barrier("looked");
    group.allReduce(ptr, 100, float32, { unit: "layers.8", phase: "backward" }).wait();
    const { calls } = group.flightRecord().ranks[group.rank] ?? assert.fail();
    const { sequence, ...last } = calls.at(-1) ?? assert.fail();
    assert.equal(sequence, group.sequence);
    assert.deepEqual(last, { kind: "all-reduce", unit: "layers.8", phase: "backward", step: 4, bytes: 400 });
  },

  "observe() tells every call, also of groups that were split off"({ group, device }): void {
    const told: string[] = [];
    const end = group.observe((call, { name }) => {
      told.push(`${name} ${call.sequence} ${call.kind} ${call.unit} ${call.phase} ${call.count} ${call.step}`);
    });
    const all = Array.from({ length: group.size }, (_, r) => r);
    const ptr = device.allocator.allocate(64 * group.size, "test");
    const first = group.sequence;
    group.step = 3;
    group.allReduce(ptr, 4, float32, { unit: "loss", phase: "backward" });
    const window = group.openWindow(all.map(() => 64), "layers.0");
    window.gather(ptr, all.map((r) => 64 * r), "layers.0", "forward");
    window.beginWrite("layers.0");
    window.endWrite();
    group.split(all, "shard").barrier("end");
    end();
    group.barrier("nobody listens");
    assert.deepEqual(told, [
      `world ${first + 1} all-reduce loss backward 4 3`,
      `world ${first + 2} open window layers.0 undefined ${64 * group.size} 3`,
      `world ${first + 3} gather layers.0 forward ${64 * group.size} 3`,
      `world ${first + 4} write layers.0 update ${64 * group.size} 3`,
      `world ${first + 5} split shard undefined 0 3`,
      `shard 1 barrier end undefined 0 3`,
    ]);
    window.dispose();
    device.allocator.free(ptr);
  },

  async "together() fails on every rank if it fails on one"({ group }): Promise<void> {
    assert.equal(await group.together("nothing", () => 7), 7);
    assert.equal(await group.together("later", () => Promise.resolve(8)), 8);
    const last = group.size - 1;
    const load = (): void => {
      if (group.rank === last) throw new RangeError("row 7 is too long");
    };
    const own = group.rank === last ? /^RangeError: row 7 is too long$/ : new RegExp(
      `^CollectiveError: Rank ${group.rank} in together 'load' .*: rank ${last} failed: RangeError: row 7`,
    );
    await failsWith(() => group.together("load", load), own);
    await failsWith(() => group.together("load", () => Promise.resolve().then(load)), own);
    const text = `"row 7"\n{"note":"+"}`;
    const fails = (): void => {
      if (group.rank === last) throw new RangeError(text);
    };
    assert.throws(() => group.agree("load", fails), (error: Error) => error.message.endsWith(text));
    // It is no abort: the ranks may go on together.
    assert.deepEqual(group.sum([1], "after"), [group.size]);
  },
};

/** Scenarios of two ranks or more. */
export const CONTROL_SCENARIOS_OF_SEVERAL: Scenarios = {
  async "together() tells equal failures of several ranks once"({ group }): Promise<void> {
    const pattern = group.rank === 0
      ? new RegExp(
        `: rank ${Array.from({ length: group.size - 1 }, (_, r) => r + 1).join(", ")} failed: Error: no room$`,
      )
      : /^Error: no room$/;
    const action = (): void => {
      if (group.rank > 0) throw new Error("no room");
    };
    await failsWith(() => group.together("save", action), pattern);
  },

  async "together() waits for one that takes long, and leaves the deadline as it was"({ group }): Promise<void> {
    group.timeoutSeconds = 0.2;
    await group.together("save", () => group.rank === 0 ? sleep(600) : undefined);
    assert.equal(group.timeoutSeconds, 0.2);
    await failsWith(() => group.together("save", () => Promise.reject(new Error("disk full"))), /disk full/);
    assert.equal(group.timeoutSeconds, 0.2);
  },

  "different calls name both on every rank": (rank) =>
    failsWith(
      () => {
        const { group } = rank;
        const ptr = place(rank, new Uint8Array(4096));
        group.barrier("before");
        if (group.rank === 1) sleep(20);
        if (group.rank === 1) group.barrier("epoch end");
        else group.allReduce(ptr, 10, float32, { unit: "loss" }).wait();
        group.barrier("never");
      },
      /rank 1 calls barrier 'epoch end'/,
      /rank [02-9].* calls all-reduce 'loss' \(float32, 10 elements, 40 bytes\)/,
    ),

  "different sizes name both on every rank": (rank) =>
    failsWith(
      () => {
        const { group } = rank;
        const ptr = place(rank, new Uint8Array(4096));
        if (group.rank === 0) sleep(20);
        group.allReduce(ptr, group.rank === 0 ? 10 : 11, float32, { unit: "norm" }).wait();
        group.barrier("never");
      },
      /rank 0 calls all-reduce 'norm' \(float32, 10 elements/,
      /rank [1-3].* calls all-reduce 'norm' \(float32, 11 elements/,
    ),

  "different factors, which no text shows, are found too": (rank) =>
    failsWith(
      () => {
        const { group, device } = rank;
        const ptr = place(rank, new Uint8Array(64));
        using scale = device.scalars.make(group.rank === 0 ? 0.5 : 0.25);
        group.allReduce(ptr, 16, float32, { unit: "norm", scale }).wait();
        group.barrier("never");
      },
      /same call with different slices, root, operation or factor: rank 0, .* calls all-reduce 'norm'/,
    ),

  "calls that wait for nobody are compared as well": (rank) =>
    failsWith(
      () => {
        const { group, device } = rank;
        const windows = [7, 8].map((i) => group.openWindow(new Array(group.size).fill(64), `layers.${i}`));
        const dst = device.allocator.allocate(64 * group.size, "test");
        const which = group.rank === 0 ? 0 : 1;
        const offsets = Array.from({ length: group.size }, (_, r) => 64 * r);
        windows[which]?.gather(dst, offsets, `layers.${7 + which}`, "forward").wait();
        group.barrier("after");
      },
      /rank 0 calls gather 'layers\.7' \(forward, \d+ bytes\)/,
      /rank [1-3].* calls gather 'layers\.8' \(forward, \d+ bytes\)/,
    ),

  "a rank that is far ahead with other calls is found in a wait": (rank) => {
    const { group } = rank;
    const started = performance.now();
    const all = Array.from({ length: group.size }, (_, r) => r);
    const messages = [
      /ranks ma[dk]e different calls/,
      // The rank that finds it first has stopped the others.
      /at or before call \d+|rank 0 calls|rank 1 calls/,
    ];
    return failsWith(() => {
      const { device } = rank;
      const window = group.openWindow(all.map(() => 64), "unit");
      const dst = device.allocator.allocate(64 * group.size, "test");
      // Rank 0 is through with all of them before the others begin, so its first calls are not kept any more.
      if (group.rank !== 0) sleep(150);
      for (let i = 0; i < 200; i++) {
        if (group.rank === 0 && i === 20) continue;
        window.gather(dst, all.map((r) => 64 * r), `layers.${i % 30}`, "forward").wait();
      }
      group.barrier("end");
    }, ...messages).then(() => assert.ok(performance.now() - started < 5000, "it waited"));
  },

  "a rank runs ahead by many calls"({ group, device }: Rank): void {
    const bytes = Array.from({ length: group.size }, () => 16);
    const window = group.openWindow(bytes, "unit");
    const dst = device.allocator.allocate(16 * group.size, "test");
    for (let i = 0; i < 500; i++) {
      if (i % 100 === 0 && group.rank === i / 100 % group.size) sleep(10);
      window.gather(dst, bytes.map((n, r) => n * r), `unit ${i % 3}`, "forward").wait();
    }
    window.dispose();
  },

  "abort() stops the others with its reason": ({ group }) => {
    group.barrier("before");
    if (group.rank === 0) {
      sleep(20);
      group.abort("the loss is NaN at step 3");
    }
    return failsWith(() => group.barrier("after"), /rank 0 stopped all ranks: the loss is NaN at step 3/);
  },

  "a rank that left is named": ({ group }) => {
    if (group.rank > 0) {
      // Between hosts, a rank may hear that others have stopped all before it comes through the barrier that these came through.
      return failsWith(() => {
        group.barrier("before");
        group.barrier("after");
      }, /rank 0 has left the group while this rank waited for.*barrier 'before'/);
    }
    group.barrier("before");
    group.dispose();
    return failsWith(() => group.barrier("after dispose"), /UseAfterDisposeError/);
  },

  "parts of a split that do not fit name the ranks": ({ group }) => {
    const all = Array.from({ length: group.size }, (_, r) => r);
    return failsWith(
      () => group.split(group.rank === 0 ? [0] : all, "shard"),
      /rank 1 splits into ranks \[0, 1.*\], but rank 0 into \[0\]/,
    );
  },
};
