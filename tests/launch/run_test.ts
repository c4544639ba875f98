/**
 * `fullyshard run` as a process: what ranks are given, how their output is shown and how a run ends.
 *
 * @module
 */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { sharedTest as test } from "../support/share.ts";
import { pidsAfter, runCli, scriptPath, startCli, untilDead } from "./launcher.ts";

const report = scriptPath("report.ts");
const behave = scriptPath("behave.ts");
const print = scriptPath("print.ts");

interface Report {
  readonly rank: number;
  readonly args: readonly string[];
  readonly variables: Readonly<Record<string, string>>;
  readonly runtime: string;
}

async function reports(args: readonly string[], variables: Readonly<Record<string, string>> = {}): Promise<Report[]> {
  const { code, stdout, stderr } = await runCli(["run", ...args], variables);
  assert.equal(code, 0, stderr);
  return stdout.trim().split("\n").map((line) => {
    const match = /^\[rank(\d+)\] (.*)$/.exec(line);
    return { rank: Number(match?.[1]), ...JSON.parse(match?.[2] ?? "") };
  }).sort((left: Report, right: Report) => left.rank - right.rank);
}

test("run() gives the script its arguments untouched", async () => {
  const args = ["--lr", "1e-4", "-x", "--a_b=c d", "", "--", "--nproc-per-node", "9", "--help", "*"];
  const [first, ...rest] = await reports(["--standalone", report, ...args]);
  assert.deepEqual(first?.args, args);
  assert.equal(rest.length, 0);
});

test("run() gives the ranks of a second host the numbers after the first's", async () => {
  const hosts = ["--nnodes=3", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29512"];
  const ranks = await reports([...hosts, "--nproc-per-node=2", report], { FULLYSHARD_TOKEN: "agreed" });
  assert.deepEqual(ranks.map(({ rank }) => rank), [2, 3]);
  for (const { variables, rank } of ranks) {
    const { RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT } = variables;
    assert.deepEqual([RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT], [
      ...[String(rank), String(rank - 2), "6", "2", "1", "10.0.0.1", "29512"],
    ]);
  }
});

test("run() gives ranks of one host a token of their own, and refuses several hosts without one", async () => {
  const tokensOf = async (argv: readonly string[], given: string): Promise<readonly (string | undefined)[]> => {
    const ranks = await reports([...argv, "--nproc-per-node=2", report], { FULLYSHARD_TOKEN: given });
    return ranks.flatMap(({ variables }) => [variables["FULLYSHARD_TOKEN"], variables["FULLYSHARD_RDZV_INSECURE"]]);
  };
  const [token = "", insecure, ...others] = await tokensOf([], "");
  assert.match(token, /^[0-9a-f-]{36}$/);
  assert.deepEqual([insecure, ...others], [undefined, token, undefined]);
  assert.notEqual((await tokensOf([], ""))[0], token);
  assert.deepEqual(await tokensOf([], "mine"), ["mine", undefined, "mine", undefined]);
  const hosts = ["--nnodes=2", "--master-addr=10.0.0.1"];
  assert.deepEqual(await tokensOf([...hosts, "--rdzv-insecure"], ""), ["", "1", "", "1"]);
  const { code, stdout, stderr } = await runCli(["run", ...hosts, report], { FULLYSHARD_TOKEN: "" });
  assert.deepEqual([code, stdout], [2, ""]);
  assert.match(stderr, /FULLYSHARD_TOKEN: expected a secret that is the same on all hosts .*--rdzv-insecure/);
});

test("run() gives each rank the variables that torchrun gives", async () => {
  const ranks = await reports(["--nproc_per_node=3", "--master-port", "29511", report], { OMP_NUM_THREADS: "5" });
  assert.deepEqual(ranks.map(({ variables }) => variables["RANK"]), ["0", "1", "2"]);
  const [first] = ranks;
  assert.match(first?.variables["FULLYSHARD_RUN_ID"] ?? "", /^run-/);
  for (const { variables, rank, runtime } of ranks) {
    assert.deepEqual(variables, {
      RANK: String(rank),
      LOCAL_RANK: String(rank),
      WORLD_SIZE: "3",
      LOCAL_WORLD_SIZE: "3",
      GROUP_RANK: "0",
      MASTER_ADDR: "127.0.0.1",
      MASTER_PORT: "29511",
      FULLYSHARD_RUN_ID: first?.variables["FULLYSHARD_RUN_ID"],
      FULLYSHARD_TOKEN: first?.variables["FULLYSHARD_TOKEN"],
      OMP_NUM_THREADS: "5",
    });
    assert.equal(runtime, process.versions["bun"] === undefined ? "deno" : "bun");
  }
});

test("run() names every run differently and chooses a port where none is given", async () => {
  const [first] = await reports(["--rdzv-id=mine", report]);
  const [second] = await reports(["--rdzv_endpoint", "localhost:29600", report]);
  assert.match(first?.variables["FULLYSHARD_RUN_ID"] ?? "", /^mine-/);
  assert.notEqual(first?.variables["FULLYSHARD_RUN_ID"], second?.variables["FULLYSHARD_RUN_ID"]);
  assert.match(first?.variables["MASTER_PORT"] ?? "", /^\d+$/);
  assert.equal(second?.variables["MASTER_ADDR"], "localhost");
  assert.equal(second?.variables["MASTER_PORT"], "29600");
});

test("run() shows whole lines with their rank, and drops a status where no terminal shows it", async () => {
  const { code, stdout, stderr } = await runCli(["run", "--nproc-per-node", "2", print]);
  assert.equal(code, 0, stderr);
  const lines = stdout.trimEnd().split("\n");
  for (const rank of [0, 1]) {
    const expected = Array.from({ length: 50 }, (_, line) => `begin-${rank}-${line}-ü-end`);
    const shown = lines.filter((line) => line.startsWith(`[rank${rank}] `)).map((line) => line.slice(8));
    assert.deepEqual(shown, [...expected, "status unset", "no line break"]);
  }
  assert.equal(lines.length, 104);
  assert.deepEqual(stderr.trimEnd().split("\n").sort(), ["[rank0] an error line", "[rank1] an error line"]);
});

test("run() exits with the code of the first rank that fails, names it and stops the others", async () => {
  const { code, stdout, stderr } = await runCli([
    "run",
    "--nproc-per-node",
    "3",
    behave,
    "0:wait",
    "1:exit=7",
    "2:wait",
  ]);
  assert.equal(code, 7);
  assert.match(stderr, /rank 1 \(pid \d+\) failed first: it ended with exit code 7\. Its last lines on stderr:/);
  assert.match(stderr, / {4}about to fail\n {4}with a partial last line\n/);
  assert.match(stderr, /stopped ranks 0, 2\n/);
  await untilDead(pidsAfter("pid", stdout));
});

test("run() reports a killed rank as 128 + its signal", async () => {
  const { code, stderr } = await runCli(["run", "--nproc-per-node", "2", behave, "0:wait", "1:kill"]);
  assert.equal(code, 137);
  assert.match(stderr, /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/);
});

test("run() kills a rank that refuses to stop, and exits with the code of the one that failed", async () => {
  const { code, stdout, stderr } = await runCli(["run", "--nproc-per-node", "2", behave, "0:stubborn", "1:throw"]);
  assert.equal(code, 1);
  assert.match(stdout, /\[rank0\] refuses SIGTERM/);
  assert.match(stderr, /thrown by the script/);
  await untilDead(pidsAfter("pid", stdout));
});

for (const [signal, expected] of [["SIGINT", 130], ["SIGTERM", 143]] as const) {
  test(`run() forwards ${signal} and exits with ${expected}`, async () => {
    const launcher = startCli(["run", "--nproc-per-node", "2", behave, "0:wait", "1:child"]);
    await launcher.until(/\[rank0\] pid[^]*child|child[^]*\[rank0\] pid/);
    process.kill(launcher.pid, signal);
    const { code, stdout } = await launcher.ended;
    assert.equal(code, expected);
    await untilDead([...pidsAfter("pid", stdout), ...pidsAfter("child", stdout)]);
  });
}

test("run() kills a rank that does not stop in the time it is given, and names it", async () => {
  const flags = ["--nproc-per-node", "2", "--stop-grace-seconds", "1.5"];
  const launcher = startCli(["run", ...flags, behave, "0:wait", "1:stubborn"]);
  await launcher.until(/\[rank0\] pid[^]*\[rank1\] pid|\[rank1\] pid[^]*\[rank0\] pid/);
  await launcher.until(/\[rank1\] ready/);
  process.kill(launcher.pid, "SIGTERM");
  const { code, stdout, stderr } = await launcher.ended;
  assert.equal(code, 143);
  assert.match(stderr, /^fullyshard: rank 1 may take 1\.5 s to stop; a second SIGTERM kills$/m);
  assert.match(stderr, /^fullyshard: killed rank 1, which did not stop within 1\.5 s$/m);
  assert.doesNotMatch(stderr, /killed rank 0/);
  await untilDead(pidsAfter("pid", stdout));
});

test("run() leaves nothing behind when it is killed itself", async () => {
  const launcher = startCli(["run", "--nproc-per-node", "2", behave, "0:stubborn", "1:child"]);
  await launcher.until(/\[rank0\] pid[^]*child|child[^]*\[rank0\] pid/);
  process.kill(launcher.pid, "SIGKILL");
  await launcher.ended;
  await untilDead([...pidsAfter("pid", launcher.stdout()), ...pidsAfter("child", launcher.stdout())]);
});

// As a rank does whose launcher is killed after it has started it, and before it has told the shell that watches.
test("run() that is killed leaves no process in a group that its shell was not told of", async () => {
  const launcher = startCli(["run", "--nproc-per-node", "2", behave, "0:wait", "1:apart"]);
  await launcher.until(/\[rank0\] pid[^]*child|child[^]*\[rank0\] pid/);
  process.kill(launcher.pid, "SIGKILL");
  await launcher.ended;
  await untilDead([...pidsAfter("pid", launcher.stdout()), ...pidsAfter("child", launcher.stdout())]);
});

test("run() keeps output in files as --redirects, --tee and --local-ranks-filter say", async () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-launch-`);
  try {
    const flags = [
      "--nproc-per-node",
      "2",
      "--log-dir",
      folder,
      "-r",
      "0:1",
      "--tee",
      "1:3",
      "--local-ranks-filter=0,1",
    ];
    const { code, stdout, stderr } = await runCli(["run", ...flags, print]);
    assert.equal(code, 0, stderr);
    const [run] = readdirSync(folder);
    const kept = (file: string): string => readFileSync(`${folder}/${run}/${file}`, "utf8");
    assert.match(kept("rank0/stdout.log"), /^begin-0-0-ü-end\n[^]*no line break$/);
    assert.deepEqual(readdirSync(`${folder}/${run}/rank0`), ["stdout.log"]);
    assert.equal(kept("rank1/stderr.log"), "an error line\r\n");
    assert.ok(!stdout.includes("[rank0]"));
    assert.ok(stdout.includes("[rank1] begin-1-0"));
    assert.match(stderr, /\[rank0\] an error line/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("run() keeps output in a folder that only this user can enter where none was named", async () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-launch-`);
  try {
    const { code, stderr } = await startCli(["run", "-r", "3", report], { TMPDIR: folder }).ended;
    assert.equal(code, 0, stderr);
    const [name = "", ...more] = readdirSync(folder).filter((entry) => entry.startsWith("fullyshard-"));
    assert.deepEqual(more, []);
    assert.equal(statSync(`${folder}/${name}`).mode & 0o777, 0o700);
    const [run = ""] = readdirSync(`${folder}/${name}`);
    assert.ok(stderr.includes(`fullyshard: output is kept in ${folder}/${name}/${run}\n`), stderr);
    assert.match(readFileSync(`${folder}/${name}/${run}/rank0/stdout.log`, "utf8"), /^\{"args"/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("run() keeps and shows everything with --log-dir alone, and shows only the ranks of the filter", async () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-launch-`);
  try {
    const { stdout } = await runCli([
      ...["run", "--nproc-per-node", "2", "--log-dir", folder, "--local-ranks-filter", "1", report],
    ]);
    const [run] = readdirSync(folder);
    assert.match(readFileSync(`${folder}/${run}/rank0/stdout.log`, "utf8"), /^\{"args"/);
    assert.ok(!stdout.includes("[rank0]"));
    assert.ok(stdout.includes("[rank1]"));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("main() exits with 2 for wrong usage, and says what was meant", async () => {
  for (
    const [args, pattern] of [
      [["run", "--nproc-per-nod", "2", report], /'--nproc-per-nod'\. Did you mean '--nproc-per-node'\?/],
      [["run", "gone.ts"], /script: expected a file, got 'gone\.ts'/],
      [["run", "--nnodes", "2", report], /--master-addr: expected the address of the host with --node-rank 0/],
      [["rnu"], /there is no command 'rnu'\. Did you mean 'run'\?/],
      [["doctor", "--jsn"], /Did you mean '--json'\?/],
    ] as const
  ) {
    const { code, stderr } = await runCli(args);
    assert.equal(code, 2, stderr);
    assert.match(stderr, pattern);
  }
});

test("main() prints help and version", async () => {
  assert.match((await runCli(["run", "--help"])).stdout, /--nproc-per-node <n\|auto\|cpu\|gpu\|min:max>/);
  const { stdout } = await runCli(["--help"]);
  assert.match(stdout, /^Usage: fullyshard \[--runtime <bun\|deno\|auto>\] <command>/);
  assert.match(stdout, /^ +FULLYSHARD_LOG +least level that is logged/m);
  for (
    const text of [stdout, (await runCli(["run", "--help"])).stdout, (await runCli(["estimate", "--help"])).stdout]
  ) {
    for (const line of text.split("\n")) assert.ok(line.length <= 80, line);
  }
  assert.match((await runCli(["--version"])).stdout, /^\d+\.\d+\.\d+\n$/);
});

test("run() is refused in each process of another launcher, and lets its ranks be nobody else's", async () => {
  const mpi = { PMI_RANK: "0", PMI_SIZE: "2" };
  const step = { SLURM_PROCID: "0", SLURM_STEP_NUM_TASKS: "2", SLURM_STEP_NODELIST: "node[1-2]" };
  for (const variables of [mpi, step]) {
    const { code, stderr } = await runCli(["run", report], variables);
    assert.equal(code, 2);
    assert.match(stderr, /^fullyshard run: Cannot start a run in each process of .*: give 'fullyshard run' once/);
    assert.equal(stderr.trim().split("\n").length, 1);
    const hosts = ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29512", "--rdzv-insecure"];
    const [rank] = await reports([...hosts, report], variables);
    assert.equal(rank?.variables["RANK"], "1");
    for (const FULLYSHARD_LAUNCHER of ["none", "torchrun"]) {
      assert.equal((await reports([report], { ...variables, FULLYSHARD_LAUNCHER })).length, 1);
    }
  }
  // Variables that the user sets for processes without a launcher do not reach ranks.
  const [rank] = await reports([report], { FULLYSHARD_LAUNCHER: "slurm" });
  assert.equal(rank?.variables["RANK"], "0");
  const joined = await runCli(["run", "--nproc-per-node=2", scriptPath("size.ts")], { FULLYSHARD_LAUNCHER: "slurm" });
  assert.equal(joined.code, 0, joined.stderr);
  assert.match(joined.stdout, /^\[rank0\] 2$/m);
});

test("run() goes on where what ranks say can no longer be written or kept, and says so", (context) => {
  if (process.platform !== "linux") return context.skip("needs a shell with ulimit -f");
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-launch-`);
  try {
    const main = fileURLToPath(new URL("../../src/cli/main.ts", import.meta.url));
    const isDeno = process.versions["deno"] !== undefined;
    const command = [
      ...[process.execPath, ...isDeno ? ["run", "-A", "--no-check"] : [], main, "run"],
      ...isDeno ? ["--deno-args=-A"] : [],
      ...["--log-dir", folder, scriptPath("chatty.ts")],
    ];
    const shell = `trap '' XFSZ; ulimit -f 20000; exec "$0" "$@" > ${folder}/out`;
    // Deno's caches of a user may be larger than the limit.
    const env = { ...process.env, DENO_DIR: `${folder}/deno` };
    const { status, signal, stderr } = spawnSync("sh", ["-c", shell, ...command], {
      encoding: "utf8",
      timeout: 60_000,
      env,
    });
    // Deno tries once more at its end to write what the full file did not take, when no handler of the signal is left.
    assert.ok(status === 0 || (isDeno && signal === "SIGXFSZ"), stderr);
    assert.match(stderr, /^fullyshard: the ranks' output is not written from here on, as a file is full: .*$/m);
    assert.match(stderr, /^fullyshard: rank 0's stdout is not kept from here on: Cannot write '.*stdout\.log': /m);
    assert.match(stderr, /\[rank0\] done/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("run() says in one sentence that no card can be counted", async (context) => {
  const { code, stderr } = await runCli(["run", "--nproc-per-node", "gpu", report], {
    FULLYSHARD_CUDART_LIBRARY: "/none",
  });
  if (code === 0) return context.skip("there is a card");
  assert.equal(code, 2);
  assert.match(stderr, /^fullyshard run: Cannot start a rank for each card by '--nproc-per-node gpu': [^\n]*'cpu'\n$/);
});
