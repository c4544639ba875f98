/**
 * The flags of `fullyshard run`.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { ConfigError, UnsupportedError } from "../../src/errors.ts";
import { asksForCards, type LaunchPlan, misplacedFlags, planRun } from "../../src/launch/plan.ts";

function plan(...argv: string[]): LaunchPlan {
  const result = planRun(argv, 8);
  assert.ok(result !== "help");
  return result;
}

test("planRun() reads torchrun's flags in both spellings, up to the script", () => {
  const result = plan("--nproc_per_node", "auto", "--master-addr=host", "--max_restarts", "0", "t.ts", "--nnodes", "5");
  assert.equal(result.numRanks, 8);
  assert.equal(result.masterAddr, "host");
  assert.equal(result.masterPort, undefined);
  assert.equal(result.script, "t.ts");
  assert.deepEqual(result.scriptArgs, ["--nnodes", "5"]);
  assert.equal(plan("--nproc-per-node=cpu", "t.ts").numRanks, 8);
  assert.equal(plan("t.ts").numRanks, 1);
  assert.equal(planRun(["--help"], 1), "help");
  assert.deepEqual(plan("t.ts", "--help").scriptArgs, ["--help"]);
  assert.deepEqual(plan("--deno-args=--allow-all  --v8-flags=x", "t.ts").denoArgs, ["--allow-all", "--v8-flags=x"]);
});

test("misplacedFlags() finds the launcher's flags among a script's arguments", () => {
  const args = ["--steps", "3", "--nproc_per_node=2", "--tee", "1", "--", "--log-dir"];
  assert.deepEqual(misplacedFlags(args), ["--nproc_per_node", "--tee"]);
});

test("planRun() takes port 0 for a port to be chosen, as torchrun does", () => {
  assert.equal(plan("--master-port", "0", "t.ts").masterPort, undefined);
  const endpoint = plan("--rdzv-endpoint", "localhost:0", "t.ts");
  assert.deepEqual([endpoint.masterAddr, endpoint.masterPort], ["localhost", undefined]);
  assert.equal(plan("--master-port", "65535", "t.ts").masterPort, 65535);
  assert.throws(() => planRun(["--master-port", "65536", "t.ts"], 1), /a port from 0 to 65535, got '65536'/);
  for (const wrong of ["localhost", "localhost:65536", ":1"]) {
    assert.throws(
      () => planRun(["--rdzv-endpoint", wrong, "t.ts"], 1),
      /--rdzv-endpoint: expected host:port with a port from 0 to 65535/,
    );
  }
});

test("planRun() gives ranks 30 s to stop, or what --stop-grace-seconds says", () => {
  assert.equal(plan("t.ts").stopGraceSeconds, 30);
  assert.equal(plan("--stop-grace-seconds", "0.5", "t.ts").stopGraceSeconds, 0.5);
  for (const wrong of ["0", "-1", "soon", "1e9"]) {
    assert.throws(() => planRun([`--stop-grace-seconds=${wrong}`, "t.ts"], 1), /a positive number of seconds/);
  }
});

test("planRun() decides for each rank and stream what is shown and kept", () => {
  const shown = (result: LaunchPlan, rank: number): string =>
    (["stdout", "stderr"] as const).map((stream) => {
      const { shown, kept } = result.stream(rank, stream);
      return `${shown ? "shown" : ""}${kept ? "kept" : ""}`;
    }).join(" ");
  assert.equal(shown(plan("t.ts"), 0), "shown shown");
  assert.equal(shown(plan("-r", "3", "t.ts"), 0), "kept kept");
  assert.equal(shown(plan("-t", "2", "t.ts"), 0), "shown shownkept");
  assert.equal(shown(plan("-r", "1", "-t", "1", "t.ts"), 0), "shownkept shown");
  assert.equal(shown(plan("--log-dir", "x", "t.ts"), 0), "shownkept shownkept");
  const mixed = plan("--nproc-per-node=3", "--redirects=0:1,2:3", "--local-ranks-filter=0,1", "t.ts");
  assert.deepEqual([0, 1, 2].map((rank) => shown(mixed, rank)), ["kept shown", "shown shown", "kept kept"]);
});

test("planRun() reports everything that is wrong at once", () => {
  const argv = [
    "--nproc-per-node",
    "0",
    "--master-port=99999",
    "--tee",
    "7",
    "--runtime",
    "node",
    "--standalon",
    "t.ts",
  ];
  assert.throws(() => planRun(argv, 2), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.deepEqual(error.problems.map(({ path }) => path), [
      "--standalon",
      "--nproc-per-node",
      "--master-port",
      "--runtime",
      "--tee",
    ]);
    return true;
  });
  assert.throws(() => planRun(["--nproc", "2", "t.ts"], 2), /got '--nproc'\. Here it is '--nproc-per-node'/);
  assert.throws(() => planRun(["--nproc-per-node"], 2), /expected a value <n\|auto\|cpu\|gpu\|min:max>, got nothing/);
  assert.throws(() => planRun(["--nproc-per-node", "--standalone", "t.ts"], 2), /got '--standalone'/);
  assert.throws(() => planRun(["--standalone"], 2), /script: expected a script after the flags, got nothing/);
  assert.throws(() => planRun(["--local-ranks-filter", "2", "t.ts"], 2), /expected ranks from 0 to 0, got '2'/);
});

test("planRun() refuses what torchrun has and this launcher has not, with the reason", () => {
  for (
    const [argv, pattern] of [
      [["--rdzv-backend=etcd", "t.ts"], /Cannot use the rendezvous 'etcd'/],
      [["--rdzv_conf", "a=b", "t.ts"], /The rendezvous has no settings/],
      [["--no-python", "x"], /Every script is run by Bun or Deno/],
    ] as const
  ) {
    assert.throws(() => planRun(argv, 2), (error) => error instanceof UnsupportedError && pattern.test(error.message));
  }
  assert.equal(plan("--nnodes=1:1", "--node-rank=0", "--rdzv-backend=c10d", "t.ts").numRanks, 1);
});

test("planRun() reads how a run goes on when ranks are lost", () => {
  const flags = ["--nproc-per-node", "2:4", "--max-restarts", "3", "--redundancy", "1"];
  const usual = { fewestHosts: 1, fewestRanks: 2, maxRestarts: 3, redundancyEvery: 1, rejoinSeconds: undefined };
  assert.deepEqual(plan(...flags, "t.ts").elastic, usual);
  assert.equal(plan(...flags, "t.ts").numRanks, 4);
  const more = [...flags, "--redundancy-every", "5", "--rejoin-seconds", "2.5", "t.ts"];
  assert.deepEqual(plan(...more).elastic, { ...usual, redundancyEvery: 5, rejoinSeconds: 2.5 });
  const whole = { ...usual, fewestRanks: 4, redundancyEvery: undefined };
  assert.deepEqual(plan("--nproc-per-node", "4", "--max-restarts", "3", "t.ts").elastic, whole);
  assert.equal(plan("--nproc-per-node", "4", "t.ts").elastic, undefined);
  for (
    const [argv, pattern] of [
      [["--nproc-per-node", "2:4", "t.ts"], /--max-restarts: expected a number from 1, as a range .*, got '0'/],
      [["--nproc-per-node", "4:2", "t.ts"], /--nproc-per-node: expected a number from 1, .* got '4:2'/],
      [["--redundancy", "1", "t.ts"], /--redundancy: expected --max-restarts of at least 1 to be set too, got '1'/],
      [["--max-restarts=1", "--redundancy=2", "t.ts"], /--redundancy: expected 0 or 1, got '2'/],
      [
        ["--max-restarts=1", "--redundancy-every=2", "t.ts"],
        /--redundancy-every: expected --redundancy 1 to be set too, got '2' without it/,
      ],
      [["--max-restarts=x", "t.ts"], /--max-restarts: expected a number, got 'x'/],
    ] as const
  ) assert.throws(() => planRun(argv, 2), pattern);
});

test("planRun() plans a part of several hosts", () => {
  const flags = ["--nnodes=2", "--node_rank", "1", "--nproc-per-node=4", "--master-addr=10.0.0.1"];
  const { numRanks, numHosts, hostRank, masterAddr, masterPort } = plan(...flags, "t.ts");
  assert.deepEqual({ numRanks, numHosts, hostRank, masterAddr, masterPort }, {
    numRanks: 4,
    numHosts: 2,
    hostRank: 1,
    masterAddr: "10.0.0.1",
    masterPort: 29500,
  });
  assert.equal(plan("--nnodes=2:2", "--rdzv-endpoint=h:4321", "t.ts").masterPort, 4321);
  for (
    const [argv, pattern] of [
      [["--nnodes=2", "t.ts"], /--master-addr: expected the address of the host with --node-rank 0, .* got nothing/],
      [[...flags, "--node-rank=2", "t.ts"], /--node-rank: expected a number below --nnodes 2, got '2'/],
      [["--node-rank=1", "t.ts"], /--node-rank: expected a number below --nnodes 1, got '1'/],
      [["--nnodes=0", "t.ts"], /--nnodes: expected a number from 1, or a range such as 1:4, got '0'/],
      [[...flags, "--master-port=0", "t.ts"], /--master-port: expected a port that is free on the first host/],
      [[...flags, "--profile", "t.ts"], /--profile: expected to be left out/],
      [[...flags, "--standalone", "t.ts"], /--standalone: expected to be left out/],
      [[...flags, "--trace=run.json", "t.ts"], /--trace: expected a folder, as each host has its own ranks' part/],
    ] as const
  ) assert.throws(() => planRun(argv, 2), pattern);
});

test("planRun() starts a rank for each card", () => {
  const argv = ["--nproc-per-node", "gpu", "t.ts"];
  assert.equal(asksForCards(argv), true);
  assert.equal(asksForCards(["--nproc-per-node=2", "t.ts", "--nproc-per-node=gpu"]), false);
  const planned = planRun(argv, 2, 8);
  assert.equal(planned === "help" ? planned : planned.numRanks, 8);
});
