/** Ranks of `shm` that die, are late, never start, come twice, or leave files behind. @module */
import { test } from "node:test";
import type { TestContext } from "node:test";
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { startRank } from "../support/rank_process.ts";
import type { RankProcess } from "../support/rank_process.ts";
import type { ShmOptions } from "../../src/comm/transports/shm.ts";
import type { Orders } from "./liveness_rank.ts";

const RANK = new URL("./liveness_rank.ts", import.meta.url);
const TIMEOUT = { timeout: 60_000 };

/** A directory of its own for each test: what is left there is its doing. */
function directory(): { path: string; files(): string[]; [Symbol.dispose](): void } {
  const path = mkdtempSync("/dev/shm/liveness-");
  return {
    path,
    files: () => readdirSync(path).sort(),
    [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }),
  };
}

function start(
  path: string,
  rank: number,
  orders: Orders["orders"],
  more: Partial<ShmOptions> = {},
  full = false,
): RankProcess {
  const options = { rank, worldSize: 2, run: "run", directory: path, apertureBytes: 2 ** 20, joinTimeoutSeconds: 20 };
  return startRank(RANK, [JSON.stringify({ options: { ...options, ...more }, orders, full } satisfies Orders)]);
}

async function joined(...ranks: RankProcess[]): Promise<void> {
  for (const rank of ranks) {
    while (!rank.stdout.includes("joined\n")) {
      if (rank.child.exitCode !== null) throw new Error(`ended early: ${rank.stdout}${rank.stderr}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

async function last(rank: RankProcess): Promise<string> {
  await rank.ended;
  return rank.stdout.trim().split("\n").at(-1) ?? rank.stderr;
}

function kill(...ranks: RankProcess[]): void {
  for (const rank of ranks) rank.child.kill("SIGKILL");
}

test("a killed rank stops the others, who name it and what they awaited it in", TIMEOUT, async () => {
  using place = directory();
  const ranks = [0, 1, 2].map((rank) =>
    start(place.path, rank, rank === 1 ? ["reduce", "hang"] : ["reduce", "reduce"], { worldSize: 3 })
  );
  await joined(...ranks);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const killed = performance.now();
  if (ranks[1] !== undefined) kill(ranks[1]);
  for (const rank of [0, 2]) {
    const text = await last(ranks[rank] ?? assert.fail());
    assert.match(text, new RegExp(`^CollectiveError: Rank ${rank} in all-reduce 'gradient of layers.3' .*call 2`));
    assert.match(
      text,
      /rank 1 died .*it was last seen after call 1, all-reduce 'gradient of layers.3' \(float32, 1000 elements, 4000 bytes\)/,
    );
  }
  // The promise to users, with their scheduler's jitter inside.
  assert.ok(performance.now() - killed < 5000);
});

test("a rank that ends without leaving is named too", TIMEOUT, async () => {
  using place = directory();
  const ranks = [start(place.path, 0, ["throw"]), start(place.path, 1, ["reduce"])];
  assert.match(await last(ranks[1] ?? assert.fail()), /rank 0 died .* it was last seen joining, with no call yet/);
  assert.equal(await last(ranks[0] ?? assert.fail()), "Error: out of coffee");
});

test("a live but late rank is only reported, once", TIMEOUT, async () => {
  using place = directory();
  const late = { reportSeconds: 0.2 };
  const ranks = [start(place.path, 0, ["reduce"], late), start(place.path, 1, ["sleep", "reduce"], late)];
  const texts = await Promise.all(ranks.map(last));
  assert.deepEqual(texts, ["ended well", "ended well"]);
  const lines = (ranks[0]?.stdout ?? "").split("\n").filter((line) => line.startsWith("late:"));
  assert.equal(lines.length, 1);
  assert.match(
    lines[0] ?? "",
    /Rank 0 has waited 0\.\d s in all-reduce 'gradient of layers\.3' .* for rank 1 .*which is alive and was last seen joining/,
  );
});

test("a rank beyond the timeout fails the others, who say where it is", TIMEOUT, async () => {
  using place = directory();
  const short = { timeoutSeconds: 0.5 };
  const ranks = [start(place.path, 0, ["reduce", "reduce"], short), start(place.path, 1, ["reduce", "hang"])];
  const text = await last(ranks[0] ?? assert.fail());
  assert.match(text, /waited 0\.5 s .*rank 1 \(awaited\) was last seen after call 1, all-reduce/);
  kill(...ranks);
});

test("ranks wait for one that saves for longer than for one that computes", TIMEOUT, async () => {
  using place = directory();
  const short = { timeoutSeconds: 0.5, reportSeconds: 0.2 };
  const ranks = [start(place.path, 0, ["work", "reduce"], short), start(place.path, 1, ["work", "reduce"], short)];
  assert.deepEqual(await Promise.all(ranks.map(last)), ["ended well", "ended well"]);
  const lines = (ranks[1]?.stdout ?? "").split("\n").filter((line) => line.startsWith("late:"));
  assert.equal(lines.length, 1);
  assert.match(lines[0] ?? "", /in exchange .*for rank 0/);
});

for (const mapping of ["auto", "copy"] as const) {
  test(`a window or group that one rank cannot have leaves nothing on any (${mapping})`, TIMEOUT, async () => {
    using place = directory();
    const orders = ["large window", "closed window", "large group", "closed group", "reduce"] as const;
    const ranks = [0, 1].map((rank) => start(place.path, rank, orders, { mapping }));
    assert.deepEqual(await Promise.all(ranks.map(last)), ["ended well", "ended well"]);
    for (const { stdout } of ranks) {
      for (const order of orders.slice(0, 4)) {
        assert.match(stdout, new RegExp(`^${order}: nothing left; (?!none)`, "m"));
      }
    }
    assert.match(
      ranks[0]?.stdout ?? "",
      /^large window: .*rank 1 could not make its part of window 'embedding': Out of/m,
    );
    assert.match(ranks[0]?.stdout ?? "", /^closed group: .*rank 1 could not open group 'shard': /m);
    assert.deepEqual(place.files(), []);
  });
}

test("a rank that never starts is named", TIMEOUT, async () => {
  using place = directory();
  const short = { joinTimeoutSeconds: 0.5, worldSize: 4 };
  const ranks = [start(place.path, 0, [], short), start(place.path, 2, [], { ...short, joinTimeoutSeconds: 10 })];
  assert.match(
    await last(ranks[0] ?? assert.fail()),
    /RendezvousError: Rank 1, 3 of 4 did not start within 0\.5 s \(run 'run'/,
  );
  assert.match(
    await last(ranks[1] ?? assert.fail()),
    /RendezvousError: Rank 0 gave up joining: Rank 1, 3 of 4 did not start/,
  );
  const alone = start(place.path, 1, [], short);
  assert.match(await last(alone), /RendezvousError: Rank 0 of 4 did not start within 0\.5 s/);
  assert.deepEqual(place.files(), []);
});

test("a second process of one rank is refused, and the first goes on", TIMEOUT, async () => {
  using place = directory();
  const ranks = [start(place.path, 0, ["sleep", "reduce"]), start(place.path, 1, ["reduce"])];
  await joined(...ranks);
  const second = start(place.path, 1, []);
  assert.match(
    await last(second),
    /RendezvousError: Rank 1 of this run is a live process already \({"pid":\d+}\).*MASTER_PORT/,
  );
  assert.deepEqual(await Promise.all(ranks.map(last)), ["ended well", "ended well"]);
  assert.deepEqual(place.files(), []);
});

test("ranks that disagree about the world's size say so", TIMEOUT, async () => {
  using place = directory();
  const ranks = [start(place.path, 0, []), start(place.path, 1, [], { worldSize: 3 })];
  assert.match(
    await last(ranks[1] ?? assert.fail()),
    /RendezvousError: Ranks disagree: rank 0 was started with a world size of 2, rank 1 with 3/,
  );
  assert.match(await last(ranks[0] ?? assert.fail()), /RendezvousError: Rank 1 gave up joining: ranks disagree/);
});

test("leftovers of a killed run are removed, and those of a live one stay", TIMEOUT, async () => {
  using place = directory();
  const live = [0, 1].map((rank) => start(place.path, rank, ["hang"], { run: "live" }));
  const dead = [0, 1].map((rank) => start(place.path, rank, ["hang"], { run: "dead" }));
  await joined(...live, ...dead);
  const before = place.files();
  kill(...dead);
  await Promise.all(dead.map((rank) => rank.ended));
  assert.deepEqual(place.files(), before);
  assert.equal(before.length, 4);
  const next = [0, 1].map((rank) => start(place.path, rank, ["reduce"], { run: "next" }));
  assert.deepEqual(await Promise.all(next.map(last)), ["ended well", "ended well"]);
  const after = place.files();
  assert.equal(after.length, 2);
  for (const name of after) assert.ok(before.includes(name), `${name} is new`);
  // The live run still works: its next member is refused as a double.
  assert.match(await last(start(place.path, 0, [], { run: "live" })), /Rank 0 of this run is a live process already/);
  kill(...live);
  await Promise.all(live.map((rank) => rank.ended));
});

test("a run of the same name as a killed one starts anew", TIMEOUT, async () => {
  using place = directory();
  for (let turn = 0; turn < 3; turn++) {
    const ranks = [0, 1].map((rank) => start(place.path, rank, ["reduce", "hang"]));
    await joined(...ranks);
    kill(...ranks);
    await Promise.all(ranks.map((rank) => rank.ended));
  }
  const ranks = [1, 0].map((rank) => start(place.path, rank, ["reduce"]));
  assert.deepEqual(await Promise.all(ranks.map(last)), ["ended well", "ended well"]);
  assert.deepEqual(place.files(), []);
});

test(
  "too little shared memory names bytes asked, free, and the container's option",
  TIMEOUT,
  async (_: TestContext) => {
    using place = directory();
    const huge = { apertureBytes: 2 ** 45 };
    const ranks = [start(place.path, 0, [], huge), start(place.path, 1, [], huge)];
    const pattern =
      /Out of memory on .*: asked for 35184372088832 bytes .*\d+ bytes are free\. Give a container more with '--shm-size'/;
    assert.match(await last(ranks[0] ?? assert.fail()), new RegExp(`^OutOfMemoryError: ${pattern.source}`));
    assert.match(
      await last(ranks[1] ?? assert.fail()),
      new RegExp(`^RendezvousError: Rank 0 gave up joining: ${pattern.source}`),
    );
    const windows = [0, 1].map((rank) => start(place.path, rank, ["window"]));
    for (const rank of windows) {
      assert.match(
        await last(rank),
        /OutOfMemoryError: .*asked for 17592186044416 bytes.*window 'embedding'.*--shm-size/,
      );
    }
  },
);

test("no room for the world's own segment is told to all at once", TIMEOUT, async () => {
  using place = directory();
  // Who does not see the note of rank 0 waits to the end, and then says something else.
  const patient = { joinTimeoutSeconds: 30, worldSize: 3 };
  const others = [1, 2].map((rank) => start(place.path, rank, [], patient));
  const first = start(place.path, 0, [], patient, true);
  const pattern = "Out of memory on .*It was for the words of 3 ranks.*--shm-size";
  assert.match(await last(first), new RegExp(`^OutOfMemoryError: ${pattern}`));
  for (const rank of others) {
    assert.match(await last(rank), new RegExp(`^RendezvousError: Rank 0 gave up joining: ${pattern}`));
  }
  assert.deepEqual(place.files(), []);
});
