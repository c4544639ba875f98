/**
 * The scenarios of messages between two ranks that every data plane of several ranks must pass; each rank runs them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { at } from "../../src/at.ts";
import { int32 } from "../../src/dtype.ts";
import { equal, place, sleep } from "./values.ts";
import type { Scenarios } from "./planes.ts";

/** Scenarios of two ranks or more. */
export const MESSAGE_SCENARIOS: Scenarios = {
  "transfer() passes messages round a ring, both ways at once"(rank): void {
    const { group, device } = rank;
    const { size } = group;
    const [next, previous] = [(group.rank + 1) % size, (group.rank + size - 1) % size];
    // Long messages take more chunks than a slot has room for, so a rank that sends first and receives then would wait forever.
    for (const [turn, n] of [0, 1, 1000, 300_000, 3].entries()) {
      const message = (from: number, to: number): Uint8Array =>
        new Uint8Array(Int32Array.from({ length: n }, (_, i) => i * 64 + from * 8 + to).buffer);
      const [ahead, back] = [place(rank, message(group.rank, next)), place(rank, message(group.rank, previous))];
      const [fromBehind, fromAhead] = [0, 1].map(() => place(rank, new Uint8Array(4 * n)));
      assert.ok(fromBehind !== undefined && fromAhead !== undefined);
      if (turn % size === group.rank) sleep(10);
      const byteLength = 4 * n;
      group.transfer([
        { kind: "send", ptr: ahead, byteLength, peer: next },
        { kind: "send", ptr: back, byteLength, peer: previous },
        { kind: "receive", ptr: fromBehind, byteLength, peer: previous },
        { kind: "receive", ptr: fromAhead, byteLength, peer: next },
      ], "keys").wait();
      if (size > 2) {
        equal(device.bytes(fromBehind, byteLength), message(previous, group.rank), `turn ${turn} from behind`);
        equal(device.bytes(fromAhead, byteLength), message(next, group.rank), `turn ${turn} from ahead`);
      }
      for (const ptr of [ahead, back, fromBehind, fromAhead]) device.allocator.free(ptr);
    }
  },

  "transfer() waits for nothing, and what a rank computes meanwhile stays"(rank): void {
    const { group, device } = rank;
    const { size } = group;
    const [next, previous] = [(group.rank + 1) % size, (group.rank + size - 1) % size];
    for (const n of [8, 300_000]) {
      const sent = place(rank, new Uint8Array(new Int32Array(n).fill(group.rank + 1).buffer));
      const [got, own] = [place(rank, new Uint8Array(4 * n)), place(rank, new Uint8Array(8))];
      // Rank 1 sends and receives when the others have begun to: if they waited for its messages, all would wait forever.
      if (group.rank === 1) group.barrier("the others have begun");
      const work = group.transfer([
        { kind: "send", ptr: sent, byteLength: 4 * n, peer: next },
        { kind: "receive", ptr: got, byteLength: 4 * n, peer: previous },
      ], "keys");
      if (group.rank !== 1) group.barrier("the others have begun");
      device.kernels.fill({ dtype: int32, n: 2, value: 7, dst: own });
      work.advance?.();
      work.wait();
      work.wait();
      equal(device.bytes(got, 4 * n), new Uint8Array(new Int32Array(n).fill(previous + 1).buffer), `${n} from behind`);
      equal(device.bytes(own, 8), new Uint8Array(Int32Array.of(7, 7).buffer), "own");
      // A collective right behind messages that no rank has waited for.
      const left = group.transfer([
        { kind: "send", ptr: got, byteLength: 4 * n, peer: next },
        { kind: "receive", ptr: sent, byteLength: 4 * n, peer: previous },
      ], "keys again");
      const gathered = place(rank, new Uint8Array(8 * size));
      group.allGather(gathered, own, 8, "sevens").wait();
      left.wait();
      equal(device.bytes(gathered, 8 * size), new Uint8Array(new Int32Array(2 * size).fill(7).buffer), "gathered");
      const twice = (group.rank + 2 * size - 2) % size;
      equal(
        device.bytes(sent, 4 * n),
        new Uint8Array(new Int32Array(n).fill(twice + 1).buffer),
        `${n} from two behind`,
      );
      for (const ptr of [sent, got, own, gathered]) device.allocator.free(ptr);
    }
  },

  "transfer() goes on when a peer whose messages have ended has left"(rank): void {
    const { group, device } = rank;
    const others = Array.from({ length: group.size - 1 }, (_, i) => i + 1);
    const child = group.split([0, ...others], "leaving");
    const [ptr, byteLength] = [place(rank, new Uint8Array(8).fill(group.rank)), 8];
    const into = others.map(() => place(rank, new Uint8Array(8)));
    if (group.rank === group.size - 1) sleep(600);
    const receives = others.map((peer, i) =>
      ({ kind: "receive", ptr: at(into, i, "place"), byteLength, peer }) as const
    );
    child.transfer(group.rank === 0 ? receives : [{ kind: "send", ptr, byteLength, peer: 0 }], "late").wait();
    child.dispose();
    for (const [i, peer] of others.entries()) {
      const expected = new Uint8Array(8).fill(group.rank === 0 ? peer : 0);
      equal(device.bytes(at(into, i, "place"), 8), expected, `from ${peer}`);
    }
    for (const block of [ptr, ...into]) device.allocator.free(block);
  },

  "send() and receive() concern two ranks only, in between what all do"(rank): void {
    const { group, device } = rank;
    const last = group.size - 1;
    const ptr = place(rank, new Uint8Array(50_000).fill(group.rank + 1));
    for (let turn = 0; turn < 5; turn++) {
      if (group.rank === 0) group.send(ptr, 50_000, last, `turn ${turn}`).wait();
      if (group.rank === last) {
        const got = device.allocator.allocate(50_000, "test");
        if (turn === 2) sleep(20);
        group.receive(got, 50_000, 0, `turn ${turn}`).wait();
        equal(device.bytes(got, 50_000), new Uint8Array(50_000).fill(1), `turn ${turn}`);
        device.allocator.free(got);
      }
      assert.deepEqual(group.sum([1], "ones"), [group.size]);
    }
    assert.throws(() => group.send(ptr, 1, group.rank, "self"), /cannot send 'self' to itself/);
    assert.throws(() => group.receive(ptr, 1, group.size, "none"), /The other end of 'none' is rank \d+, which is not/);
    device.allocator.free(ptr);
  },

  "ends of a message that disagree on its length say so"(rank): void {
    const { group } = rank;
    const ptr = place(rank, new Uint8Array(400));
    const call = (): void => {
      if (group.rank === 0) group.send(ptr, 400, 1, "keys").wait();
      if (group.rank === 1) group.receive(ptr, 396, 0, "keys").wait();
    };
    // Between hosts, ranks at neither end may hear of it before they come through the first barrier, or any later one.
    assert.throws(() => {
      group.barrier("before");
      call();
      group.barrier("after");
      group.barrier("after that");
    }, /rank 0 sends 400 bytes, but rank 1 receives 396/);
  },
};
