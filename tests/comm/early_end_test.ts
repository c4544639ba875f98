/** Ranks that end before they join: those that wait for them are told by the launcher, at once and on all hosts. @module */
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { runCli } from "../launch/launcher.ts";
import { sharedTest as test } from "../support/share.ts";
import { freePorts } from "../support/world.ts";

const TIMEOUT = { timeout: 120_000 };
const SCRIPT = fileURLToPath(new URL("./early_rank.ts", import.meta.url));

/** Runs ranks of one host; how that ended, and after how many seconds. */
async function run(ranks: number, orders: string): Promise<{ code: number | null; text: string; seconds: number }> {
  const begin = performance.now();
  const { code, stdout, stderr } = await runCli(["run", `--nproc-per-node=${ranks}`, SCRIPT, orders]);
  return { code, text: stdout + stderr, seconds: (performance.now() - begin) / 1000 };
}

test(
  "ranks end at once where one of their host ends before it joins, with its status and last words",
  TIMEOUT,
  async () => {
    for (
      const [orders, who] of [["1:exit=0", 1], ["0:exit=0", 0], ["2:exit=0 0:sleep=800", 2], [
        "0:exit=0 1:sleep=800",
        0,
      ]] as const
    ) {
      const { code, text, seconds } = await run(3, orders);
      assert.ok(seconds < 30, `${seconds} s: ${text}`);
      assert.equal(code, 1, text);
      const pattern = `RendezvousError: Rank ${who} gave up joining: it ended with exit code 0 before it joined\\. ` +
        `Its last lines on stderr:\\n {4}a last red word\\\\u0008`;
      assert.match(text, new RegExp(pattern), orders);
      assert.match(text, new RegExp(`rank ${who} ended, without an error of its own, while others awaited it`));
      if (!orders.includes("sleep")) assert.doesNotMatch(text, /stopped rank/);
    }
  },
);

test("a rank that fails before it joins is named with its error, and ranks that join later run", TIMEOUT, async () => {
  const failed = await run(2, "1:throw");
  assert.equal(failed.code, 1);
  assert.match(failed.text, /rank 1 \(pid \d+\) failed first: TypeError: no such column/);
  const exited = await run(2, "0:exit=3");
  assert.equal(exited.code, 3);
  assert.match(exited.text, /rank 0 \(pid \d+\) failed first: it ended with exit code 3/);
  const well = await run(3, "2:sleep=700");
  assert.equal(well.code, 0, well.text);
  assert.equal(well.text.match(/joined all/g)?.length, 3);
});

test(
  "ranks of other hosts end at once where a rank ends before it joins, with its status and last words",
  TIMEOUT,
  async () => {
    for (const [orders, who] of [["3:exit=0", 3], ["2:exit=4 3:exit=4", 2], ["0:exit=0 2:sleep=200", 0]] as const) {
      const begin = performance.now();
      const port = freePorts();
      const variables = { FULLYSHARD_TOKEN: crypto.randomUUID() };
      const ends = await Promise.all([0, 1].map((host) => {
        const place = ["--nnodes=2", `--node-rank=${host}`, "--master-addr=127.0.0.1", `--master-port=${port}`];
        return runCli(["run", ...place, "--nproc-per-node=2", SCRIPT, orders, "hosts"], variables);
      }));
      const seconds = (performance.now() - begin) / 1000;
      assert.ok(seconds < 30, `${seconds} s`);
      const other = ends[who < 2 ? 1 : 0] ?? assert.fail();
      assert.notEqual(other.code, 0);
      assert.match(
        other.stderr,
        /RendezvousError: Rank \d gave up joining: it ended with exit code \d before it joined/,
      );
      assert.match(other.stderr, /Its last lines on stderr:\n {4}a last red word/);
      assert.match(other.stderr, /rank \d, on another host, failed earlier/);
    }
  },
);
