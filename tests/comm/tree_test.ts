/** The tree of hosts: the frames that each call sends over the store, and the calls of others that ranks learn of. @module */
import assert from "node:assert/strict";
import { treePlace, treePlaces } from "../../src/comm/hosts/tree.ts";
import { TREE_MAILBOX_BYTES, TreeExchange } from "../../src/comm/hosts/tree_exchange.ts";
import { Replica } from "../../src/comm/hosts/replica.ts";
import { float32 } from "../../src/dtype.ts";
import { openHostsWorld } from "../support/hosts_world.ts";
import { onlyInAll, sharedTest as test } from "../support/share.ts";
import { freePorts } from "../support/world.ts";

const TIMEOUT = { timeout: 120_000 };
const ranksOf = (size: number): readonly number[] => Array.from({ length: size }, (_, rank) => rank);

/** A call of one rank. */
function call(sequence: number, unit: string = `layers.${sequence % 10}`, count: number = 64) {
  return {
    kind: "all-reduce",
    unit,
    phase: "backward",
    dtype: float32,
    count,
    detail: 0,
    step: 1,
    sequence,
  } as const;
}

/** Numbers that look random and are the same in each run. */
function* randomNumbers(seed: number): Generator<number, never> {
  for (let state = seed;;) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 32;
  }
}

test("treePlaces() joins all ranks by few neighbours and short paths, mostly within a host", () => {
  for (const [size, perHost] of [[1, 1], [2, 1], [7, 2], [64, 8], [63, 8], [300, 1], [1024, 64]] as const) {
    const places = treePlaces(ranksOf(size), perHost);
    let between = 0;
    for (const [rank, { parent, children }] of places.entries()) {
      assert.deepEqual(treePlace(ranksOf(size), perHost, rank), { parent, children });
      assert.ok(children.length <= 4);
      for (const child of children) assert.equal(places[child]?.parent, rank);
      if (parent !== undefined && Math.floor(parent / perHost) !== Math.floor(rank / perHost)) between++;
      let depth = 0;
      for (let at = parent; at !== undefined; at = places[at]?.parent) depth++;
      assert.ok(depth <= 2 * Math.log2(size) + 1, `rank ${rank} of ${size} at ${depth}`);
    }
    assert.equal(places.filter(({ parent }) => parent === undefined).length, 1);
    assert.equal(between, Math.ceil(size / perHost) - 1);
  }
  // A group of some ranks, of which one host has more than another.
  assert.deepEqual([0, 1, 2, 3].map((rank) => treePlace([1, 4, 5, 6], 4, rank)), treePlaces([1, 4, 5, 6], 4));
  assert.deepEqual(treePlaces([1, 4, 5, 6], 4), [
    { parent: undefined, children: [1] },
    { parent: 0, children: [2, 3] },
    { parent: 1, children: [] },
    { parent: 1, children: [] },
  ]);
});

test("TreeExchange gives each rank the bytes of all, whenever what is published comes", () => {
  const random = randomNumbers(7);
  const under = (limit: number): number => Math.floor(random.next().value * limit);
  for (const [size, perHost] of [[1, 1], [2, 1], [3, 2], [5, 2], [16, 4], [23, 3]] as const) {
    const places = treePlaces(ranksOf(size), perHost);
    const replicas = ranksOf(size).map((rank) =>
      new Replica({ id: "test", worldRanks: ranksOf(size), rank, byteLength: TREE_MAILBOX_BYTES })
    );
    // The bytes that the store has of each rank, and that it would send: the newest, sooner or later.
    const published = ranksOf(size).map(() => new Uint8Array(replicas[0]?.byteLength ?? 0));
    let publications = 0;
    const exchanges = ranksOf(size).map((rank) =>
      new TreeExchange(
        { rank, size, place: places[rank] ?? assert.fail() },
        replicas[rank]?.block ?? assert.fail(),
        () => {
          publications++;
          for (const { offset, bytes } of replicas[rank]?.changes() ?? []) published[rank]?.set(bytes, offset);
        },
      )
    );
    const deliver = (rank: number): void => {
      const { parent, children } = places[rank] ?? assert.fail();
      for (const peer of [...parent === undefined ? [] : [parent], ...children]) {
        if (under(2) === 0) replicas[rank]?.apply(peer, 0, published[peer] ?? assert.fail());
      }
    };
    for (let turn = 0; turn < 12; turn++) {
      const messages = ranksOf(size).map((rank) => {
        const length = turn === 3
          ? 0
          : turn === 5 && rank === size - 1
          ? 70_000
          : under([60, 5000, 20_000][turn % 3] ?? 0);
        return new Uint8Array(length).map((_, i) => rank * 31 + turn + i);
      });
      publications = 0;
      const running = exchanges.map((exchange, rank) => exchange.steps(messages[rank] ?? assert.fail()));
      const steps = running.map((one) => one.next());
      for (let tries = 0; steps.some(({ done }) => done !== true); tries++) {
        assert.ok(tries < 1_000_000, "it does not come to an end");
        const rank = under(size);
        deliver(rank);
        const step = steps[rank] ?? assert.fail();
        if (step.done === true || !step.value.ready()) continue;
        steps[rank] = running[rank]?.next() ?? assert.fail();
      }
      for (const step of steps) {
        assert.ok(step.done === true);
        assert.equal(step.value.length, size);
        step.value.forEach((bytes, rank) => assert.deepEqual(bytes, messages[rank], `turn ${turn}, rank ${rank}`));
      }
      if (turn === 3) assert.ok(publications <= 2 * size, `${publications} publications of ${size} ranks`);
    }
  }
});

test("calls and barriers between hosts cost updates in proportion to ranks", TIMEOUT, async () => {
  const CALLS = 100;
  for (const size of [2, 8, 64, ...onlyInAll([4, 16, 32])]) {
    const perHost = Math.max(1, Math.min(8, size / 2));
    using world = await openHostsWorld(size, perHost, freePorts());
    const planes = ranksOf(size).map((rank) => world.plane(rank));
    world.deliverAll();
    world.reset();
    for (let sequence = 1; sequence <= CALLS; sequence++) {
      for (const plane of planes) plane.announce(call(sequence));
    }
    world.deliverAll();
    const sent = world.counts.sent.get("update") ?? 0;
    const received = world.counts.received.get("update") ?? 0;
    assert.ok(
      sent <= size * CALLS && received <= 2 * (size - 1) * CALLS,
      `${size}: ${sent} sent, ${received} received`,
    );

    const places = treePlaces(ranksOf(size), perHost);
    const worldRanks = ranksOf(size);
    const exchanges = places.map((place, rank) => {
      const replica = new Replica({ id: "00".repeat(8), worldRanks, rank, byteLength: TREE_MAILBOX_BYTES });
      const link = world.links[rank] ?? assert.fail();
      link.open(replica, [...place.parent === undefined ? [] : [place.parent], ...place.children]);
      return new TreeExchange({ rank, size, place }, replica.block, () => link.publish(replica));
    });
    const barrier = (): void => {
      const running = exchanges.map((exchange) => exchange.steps(new Uint8Array()));
      const steps = running.map((one) => one.next());
      while (steps.some(({ done }) => done !== true)) {
        for (const [rank, step] of steps.entries()) {
          world.links[rank]?.pump(0);
          if (step.done !== true && step.value.ready()) steps[rank] = running[rank]?.next() ?? assert.fail();
        }
      }
    };
    barrier();
    world.deliverAll();
    world.reset();
    for (let i = 0; i < 10; i++) barrier();
    world.deliverAll();
    const up = (world.counts.sent.get("update") ?? 0) / 10;
    const down = (world.counts.received.get("update") ?? 0) / 10;
    assert.ok(up <= 2 * size && down <= 4 * (size - 1), `${size}: ${up} sent, ${down} received in a barrier`);
    for (const plane of planes.toReversed()) plane.dispose();
  }
});

test("ranks of many hosts that call different things are named, with calls and arguments", TIMEOUT, async () => {
  for (const [size, who] of [[2, 1], [7, 6], [16, 0], [16, 11]] as const) {
    using world = await openHostsWorld(size, 2, freePorts());
    const planes = ranksOf(size).map((rank) => world.plane(rank));
    const announce = (sequence: number): void => {
      for (const [rank, plane] of planes.entries()) {
        plane.announce(sequence === 20 && rank === who ? call(20, "layers.0", 65) : call(sequence));
      }
    };
    const found = ((): string => {
      try {
        for (let sequence = 1; sequence < 100; sequence++) {
          announce(sequence);
          // Long enough for every call to be published.
          world.deliverAll(12);
        }
        return "nothing";
      } catch (error) {
        return String(error);
      }
    })();
    const text = (ranks: string, count: number): RegExp =>
      new RegExp(`rank ${ranks} calls all-reduce 'layers\\.0' \\(backward, float32, ${count} elements`);
    assert.match(found, text(String(who), 65));
    // Ranks that announce after the one that finds it have not reached this call.
    assert.match(found, text("\\d+(, \\d+)*", 64));
    for (const [list = ""] of found.matchAll(/(?<=rank )[\d, ]+(?= calls .{50,60} 64 )/g)) {
      assert.ok(!list.split(", ").includes(String(who)));
    }
    // All others are stopped by it.
    world.deliverAll();
    for (const plane of planes) assert.throws(() => plane.announce(call(1000)), /stopped all ranks|rank \d+ calls/);
    for (const plane of planes) plane.dispose();
  }
});
