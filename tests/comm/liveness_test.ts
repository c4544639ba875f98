/** Ranks of `shm` that die, are late, never start, come twice, or leave files behind. @module */
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { longTest, sharedTest as test } from "../support/share.ts";
import {
  errorsOf,
  type PlaneOptions,
  type RankEnd,
  type RunningWorld,
  startWorld,
  valuesOf,
  world,
} from "../support/world.ts";
import { exit, fillDirectory, obey, type Order, type Refusal, undo } from "./ranks.ts";

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

/** Starts some ranks of a world, each with its orders; all of them unless `only` says which. */
function start(
  path: string,
  data: readonly (readonly Order[])[],
  more: PlaneOptions = {},
  only?: readonly number[],
): RunningWorld<string> {
  const planes = { directory: path, stagingBytes: 2 ** 20, run: "run", ...more };
  return startWorld(data.length, obey, { planes, data }, only);
}

function kill({ processes }: RunningWorld<unknown>, ...which: readonly number[]): void {
  for (const index of which) processes[index]?.child.kill("SIGKILL");
}

async function end(running: RunningWorld<string>, index: number): Promise<RankEnd<string>> {
  return (await running.ends)[index] ?? assert.fail(`there is no process ${index}`);
}

test("a killed rank stops the others, who name it and what they awaited it in", TIMEOUT, async () => {
  using place = directory();
  const running = start(place.path, [["reduce", "reduce"], ["reduce", "hang"], ["reduce", "reduce"]]);
  await running.joined(0, 1, 2);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const killed = performance.now();
  kill(running, 1);
  for (const rank of [0, 2]) {
    const { error = "" } = await end(running, rank);
    assert.match(error, new RegExp(`^CollectiveError: Rank ${rank} in all-reduce 'layers.3' .*call 2`));
    const lastSeen = /last seen after call 1, all-reduce 'layers.3' \(backward, float32, 1000 elements, 4000 bytes\)/;
    assert.match(error, /rank 1 died .*while this rank waited for/);
    assert.match(error, lastSeen);
  }
  // The promise to users, with their scheduler's jitter inside.
  assert.ok(performance.now() - killed < 5000);
});

test("a rank that ends without leaving is named too", TIMEOUT, async () => {
  using place = directory();
  const [gone, left] = await world(2, exit, { over: "shm", planes: { directory: place.path }, data: 0 });
  assert.equal(gone?.code, 7);
  assert.match(left?.error ?? "", /rank 0 died .* last seen joining, with no call yet/);
  const ends = await world(2, obey, { over: "shm", planes: { directory: place.path }, data: [["throw"], ["reduce"]] });
  const [thrown, told] = errorsOf(ends);
  assert.equal(thrown, "Error: out of coffee");
  assert.match(told ?? "", /rank 0 stopped all ranks: Error: out of coffee/);
});

test("a live but late rank is only reported, once", TIMEOUT, async () => {
  using place = directory();
  const running = start(place.path, [["reduce"], ["sleep", "reduce"]], { reportSeconds: 0.2 });
  const ends = await running.ends;
  assert.deepEqual(valuesOf(ends), ["well", "well"]);
  assert.equal(ends[0]?.said.length, 1);
  assert.match(
    ends[0]?.said[0] ?? "",
    /Rank 0 has waited 0\.\d s in all-reduce 'layers\.3' .* for rank 1 .*which is alive and was last seen joining/,
  );
});

test("a rank beyond the timeout fails the others, who say where it is", TIMEOUT, async () => {
  using place = directory();
  const running = start(place.path, [["reduce", "reduce"], ["reduce", "hang"]], { timeoutSeconds: 0.5 });
  await running.processes[0]?.ended;
  kill(running, 1);
  const { error = "" } = await end(running, 0);
  assert.match(error, /waited 0\.5 s .*rank 1 \(awaited\) was last seen after call 1, all-reduce/);
});

for (const mapping of ["auto", "copy"] as const) {
  for (const what of ["large window", "closed window", "closed group", "large group"] as const) {
    // Without mapped pages a window is no shared file, so there is nothing of others to be opened.
    if (mapping === "copy" && what === "closed window") continue;
    test(`a ${what} that one rank cannot have leaves nothing on any (${mapping})`, TIMEOUT, async () => {
      using place = directory();
      const data: { directory: string; what: Refusal } = { directory: place.path, what };
      const planes = { directory: place.path, mapping };
      for (const [rank, text] of valuesOf(await world(2, undo, { over: "shm", planes, data })).entries()) {
        assert.match(text, /^nothing left; (?!none).*; 2$/);
        if (rank === 0) {
          assert.match(text, /CollectiveError: Rank 0 in (open window 'embedding'|split 'shard').*: rank 1 failed: /);
        }
      }
      assert.deepEqual(place.files(), []);
    });
  }
}

test("a rank that never starts is named", TIMEOUT, async () => {
  using place = directory();
  const orders = [[], [], [], []];
  const waits = start(place.path, orders, { joinTimeoutSeconds: 0.5 }, [0]);
  const patient = start(place.path, orders, { joinTimeoutSeconds: 10 }, [2]);
  assert.match(
    (await end(waits, 0)).error ?? "",
    /RendezvousError: Rank 1, 3 of 4 did not start within 0\.5 s \(run 'run\/0'/,
  );
  assert.match(
    (await end(patient, 0)).error ?? "",
    /RendezvousError: Rank 0 gave up joining: Rank 1, 3 of 4 did not start/,
  );
  const alone = start(place.path, orders, { joinTimeoutSeconds: 0.5 }, [1]);
  assert.match((await end(alone, 0)).error ?? "", /RendezvousError: Rank 0 of 4 did not start within 0\.5 s/);
  assert.deepEqual(place.files(), []);
});

test("a second process of one rank is refused, and the first goes on", TIMEOUT, async () => {
  using place = directory();
  const first = start(place.path, [["sleep", "sleep", "sleep", "reduce"], ["reduce"]]);
  await first.joined(0, 1);
  const second = start(place.path, [[], []], {}, [1]);
  assert.match(
    (await end(second, 0)).error ?? "",
    /RendezvousError: Rank 1 of this run is a live process already, which holds .*lock-1.*MASTER_PORT/,
  );
  assert.deepEqual(valuesOf(await first.ends), ["well", "well"]);
  assert.deepEqual(place.files(), []);
});

longTest("a rank that is started anew does not join the world that its predecessor died in", TIMEOUT, async () => {
  using place = directory();
  const first = start(place.path, [["sleep", "sleep", "reduce"], ["hang"]]);
  await first.joined(0, 1);
  kill(first, 1);
  await first.processes[1]?.ended;
  const anew = start(place.path, [[], ["reduce"]], { joinTimeoutSeconds: 4 }, [1]);
  // Rank 0 sees at once that the one it knew is dead, although somebody holds the lock file of that name again.
  assert.match((await end(first, 0)).error ?? "", /rank 1 died .* while this rank waited for/);
  assert.match((await end(anew, 0)).error ?? "", /RendezvousError: Rank 0 of 2 did not start within 4 s/);
});

test("ranks that disagree about the world's size say so", TIMEOUT, async () => {
  using place = directory();
  const two = start(place.path, [[], []], {}, [0]);
  const three = start(place.path, [[], [], []], {}, [1]);
  assert.match(
    (await end(three, 0)).error ?? "",
    /RendezvousError: Ranks disagree: rank 0 was started with a world size of 2, rank 1 with 3/,
  );
  assert.match((await end(two, 0)).error ?? "", /RendezvousError: Rank 1 gave up joining: ranks disagree/);
});

test("leftovers of a killed run are removed, and those of a live one stay", TIMEOUT, async () => {
  using place = directory();
  const [live, dead] = ["live", "dead"].map((run) => start(place.path, [["hang"], ["hang"]], { run }));
  assert.ok(live !== undefined && dead !== undefined);
  await Promise.all([live.joined(0, 1), dead.joined(0, 1)]);
  const before = place.files();
  kill(dead, 0, 1);
  await dead.ends;
  assert.deepEqual(place.files(), before);
  assert.equal(before.length, 4);
  const next = start(place.path, [["reduce"], ["reduce"]], { run: "next" });
  assert.deepEqual(valuesOf(await next.ends), ["well", "well"]);
  const after = place.files();
  assert.equal(after.length, 2);
  for (const name of after) assert.ok(before.includes(name), `${name} is new`);
  // The live run still works: its next member is refused as a double.
  const double = start(place.path, [[], []], { run: "live" }, [0]);
  assert.match((await end(double, 0)).error ?? "", /Rank 0 of this run is a live process already/);
  kill(live, 0, 1);
  await live.ends;
});

test("a run of the same name as a killed one starts anew", TIMEOUT, async () => {
  using place = directory();
  for (let turn = 0; turn < 3; turn++) {
    const killed = start(place.path, [["reduce", "hang"], ["reduce", "hang"]]);
    await killed.joined(0, 1);
    kill(killed, 0, 1);
    await killed.ends;
  }
  assert.deepEqual(valuesOf(await start(place.path, [["reduce"], ["reduce"]]).ends), ["well", "well"]);
  assert.deepEqual(place.files(), []);
});

longTest("too little shared memory names bytes asked, free, and the container's option", TIMEOUT, async () => {
  using place = directory();
  const text = /Out of memory on .*: asked for 32768\.\d+ GiB .* are free\. Give a container more with '--shm-size'/;
  const [first, second] = errorsOf(await start(place.path, [[], []], { stagingBytes: 2 ** 45 }).ends);
  assert.match(first ?? "", new RegExp(`^OutOfMemoryError: ${text.source}`));
  assert.match(second ?? "", new RegExp(`^CollectiveError: .*rank 0 failed: OutOfMemoryError: ${text.source}`));
  for (const error of errorsOf(await start(place.path, [["window"], ["window"]]).ends)) {
    assert.match(error, /OutOfMemoryError: .*asked for 16384\.00 GiB.*window 'embedding'.*--shm-size/);
  }
  assert.deepEqual(place.files(), []);
});

test("no room for the world's own file is told to all at once", TIMEOUT, async () => {
  using place = directory();
  // A rank that does not see the note of rank 0 waits until the timeout, and then gives another error.
  const planes = { directory: place.path, joinTimeoutSeconds: 30 };
  const ends = await startWorld(3, obey, { planes, data: [[], [], []], prepare: fillDirectory }).ends;
  const pattern = "Out of memory on .*It was for the words of 3 ranks.*--shm-size";
  const [first, ...others] = errorsOf(ends);
  assert.match(first ?? "", new RegExp(`^OutOfMemoryError: ${pattern}`));
  for (const error of others) assert.match(error, new RegExp(`^RendezvousError: Rank 0 gave up joining: ${pattern}`));
  assert.deepEqual(place.files(), []);
});
