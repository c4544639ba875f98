/** Ranks of what counts as several hosts, which know of each other by the store alone: two launchers, and single ranks. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";
import { type RankProcess, startRank } from "../support/rank_process.ts";
import { freePorts } from "../support/world.ts";
import { startRun } from "../train/runs.ts";

const TIMEOUT = { timeout: 120_000 };

test("a rank that is killed on one host ends those of the other, which name it", { timeout: 120_000 }, async () => {
  const port = String(freePorts());
  const env = { FULLYSHARD_TOKEN: crypto.randomUUID() };
  const [first, second] = [0, 1].map((host) => {
    const flags = ["--nnodes=2", `--node-rank=${host}`, "--master-addr=127.0.0.1", `--master-port=${port}`];
    return startRun([], {
      flags,
      env,
      allowAll: true,
      script: fileURLToPath(new URL("./hosts_rank.ts", import.meta.url)),
    });
  });
  assert.ok(first !== undefined && second !== undefined);
  await Promise.all([
    first.until(/rank0\] joined[^]*rank1\] joined|rank1\] joined[^]*rank0\] joined/),
    second.until(/rank3\] joined/),
  ]);
  const pid = /\[rank3\] joined (\d+)/.exec(second.output())?.[1];
  const killed = performance.now();
  process.kill(Number(pid), "SIGKILL");
  const [here, there] = await Promise.all([first.ended, second.ended]);
  const seconds = (performance.now() - killed) / 1000;
  assert.ok(seconds < 5, `${seconds} s`);
  assert.match(there.stderr, /rank 3 \(pid \d+\) failed first: it was killed by SIGKILL/);
  assert.equal(there.code, 137);
  assert.match(here.stderr, /rank [23], on another host, failed earlier/);
  assert.match(here.stderr, /rank 3 died \(its process or Worker is gone\) while this rank waited for/);
  assert.notEqual(here.code, 0);
});

/** Starts seven ranks on what counts as three hosts and a part of a fourth; gives each rank its orders. */
function startRanks(ordersOf: (rank: number) => readonly string[]): readonly RankProcess[] {
  const port = String(freePorts());
  return Array.from(
    { length: 7 },
    (_, rank) =>
      startRank(new URL("./hosts_orders.ts", import.meta.url), [String(rank), "7", "2", port, ...ordersOf(rank)]),
  );
}

/** The lines of each rank until it ended. */
async function saidBy(ranks: readonly RankProcess[]): Promise<readonly string[]> {
  await Promise.all(ranks.map(({ ended }) => ended));
  return ranks.map(({ stdout, stderr }) => stdout + stderr);
}

test("ranks of several hosts that call different things name the call of each, on every rank", TIMEOUT, async () => {
  const said = await saidBy(startRanks((rank) => ["barrier:first", `barrier:${rank === 5 ? "epoch end" : "loss"}`]));
  for (const text of said) {
    assert.match(text, /rank 5 calls barrier 'epoch end'/);
    assert.match(text, /rank [\d, ]*\d calls barrier 'loss'/);
  }
});

longTest("a late rank of several hosts is named by those that wait, and no other", TIMEOUT, async () => {
  for (const late of [6, 2]) {
    const said = await saidBy(startRanks((rank) => [
      "barrier:first",
      ...rank === late ? ["sleep:1500"] : [],
      "barrier:second",
    ]));
    for (const [rank, text] of said.entries()) {
      assert.match(text, /well/);
      const named = [...text.matchAll(/Rank \d has waited .* for rank (\d) \(its contribution\), which is alive/g)];
      assert.deepEqual(named.map(([, who]) => Number(who)), rank === late ? [] : [late], text);
    }
  }
});

test(
  "a rank of several hosts that is killed, throws, leaves or never comes back is named by all",
  TIMEOUT,
  async () => {
    const orders = (what: readonly string[], who: number) => (rank: number): readonly string[] => [
      "barrier:first",
      ...rank === who ? what : [],
      "barrier:second",
    ];
    const killed = startRanks(orders(["sleep:60000"], 3));
    while (killed.some(({ stdout }) => !stdout.includes("joined"))) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    await new Promise((resolve) => setTimeout(resolve, 300));
    const begin = performance.now();
    killed[3]?.child.kill("SIGKILL");
    const ends = await saidBy(killed);
    assert.ok(performance.now() - begin < 5000);
    for (const [rank, text] of ends.entries()) {
      if (rank === 3) continue;
      assert.match(text, /rank 3 died \(its process or Worker is gone\) while this rank waited for/);
      assert.match(text, /last seen after call 1, barrier 'first'/);
      assert.match(
        text,
        /Rank \d waits in barrier 'second' .*: rank 3 died and was last seen after call 1, barrier 'first'/,
      );
    }
    for (const text of await saidBy(startRanks(orders(["throw"], 4)))) assert.match(text, /out of coffee/);
    for (const [rank, text] of (await saidBy(startRanks(orders(["leave"], 5)))).entries()) {
      if (rank !== 5) {
        assert.match(text, /rank 5 has left the group while this rank waited for .*call 1, barrier 'first'/);
      }
    }
    for (const [rank, text] of (await saidBy(startRanks(orders(["sleep:12000"], 1)))).entries()) {
      assert.match(
        text,
        rank === 1 ? /stopped all ranks: .*waited 8 s/ : /waited 8 s .*rank 1 \(awaited\) was last seen after call 1/,
      );
    }
  },
);
