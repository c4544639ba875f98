/** Two launchers of one machine as two hosts, whose ranks know of each other by the store alone. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { freePorts } from "../support/world.ts";
import { startRun } from "../train/runs.ts";

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
  assert.match(here.stderr, /rank [23], on another host, ended or stopped all before/);
  assert.match(here.stderr, /rank 3 died \(its process or Worker is gone\) while it was awaited/);
  assert.notEqual(here.code, 0);
});
