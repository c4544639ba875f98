/**
 * The command `fullyshard` started by Node, which has to find a runtime first.
 *
 * @module
 */

import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { sharedTest as test } from "../support/share.ts";
import { fileURLToPath } from "node:url";
import { pidsAfter, scriptPath, untilDead } from "./launcher.ts";

const bin = fileURLToPath(new URL("../../bin/", import.meta.url));
const node = spawnSync("node", ["-p", "process.execPath"], { encoding: "utf8" }).stdout?.trim() ?? "";
const skip = node === "" ? "needs Node on PATH" : false;

function fullyshard(args: readonly string[], variables: Readonly<Record<string, string>> = {}, from: string = bin) {
  const { status, stdout, stderr } = spawnSync(node, [`${from}fullyshard.mjs`, ...args], {
    encoding: "utf8",
    cwd: from,
    env: { ...process.env, FULLYSHARD_RUNTIME: "", ...variables },
  });
  return { status, stdout, stderr };
}

test("fullyshard runs on the runtime asked for and passes on the exit code", { skip }, () => {
  const report = ["run", scriptPath("report.ts"), "--a", "--", "b"];
  for (const runtime of ["bun", "deno"]) {
    for (
      const { status, stdout, stderr } of [
        fullyshard(["--runtime", runtime, ...report]),
        fullyshard([`--runtime=${runtime}`, ...report]),
        fullyshard(report, { FULLYSHARD_RUNTIME: runtime }),
      ]
    ) {
      assert.equal(status, 0, stderr);
      assert.match(stdout, /^\[rank0\] \{"args":\["--a","--","b"\]/);
      assert.match(stdout, new RegExp(`"runtime":"${runtime}"`));
    }
  }
  assert.equal(fullyshard(["run", scriptPath("behave.ts"), "0:exit=7"]).status, 7);
  assert.equal(fullyshard(["run", scriptPath("behave.ts"), "0:kill"]).status, 137);
  assert.equal(fullyshard(["--runtime", "node", "run"]).status, 2);
});

test("fullyshard starts ranks under the other runtime where --runtime stands after run", { skip }, () => {
  for (const [own, other] of [["bun", "deno"], ["deno", "bun"]]) {
    const { stdout, stderr } = fullyshard([
      "--runtime",
      own ?? "",
      "run",
      "--runtime",
      other ?? "",
      scriptPath("report.ts"),
    ]);
    assert.match(stdout, new RegExp(`"runtime":"${other}"`), stderr);
  }
});

test("fullyshard stops ranks under Deno with the permissions it takes", { skip }, () => {
  const ended = fullyshard([
    ...["--runtime", "deno", "run", "--nproc-per-node", "2", "--runtime", "deno"],
    ...[scriptPath("behave.ts"), "0:exit=7", "1:wait"],
  ]);
  assert.equal(ended.status, 7, ended.stderr);
  assert.match(ended.stderr, /stopped rank 1\n/);
  assert.doesNotMatch(ended.stderr, /NotCapable/);
  // Without a log there is no permission to write one; with one there is.
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-bin-`);
  try {
    const kept = fullyshard(["--runtime", "deno", "run", "--log-dir", folder, scriptPath("behave.ts")]);
    assert.equal(kept.status, 0, kept.stderr);
    // Deno starts nothing beside a variable of the linker unless it may start everything.
    const linked = fullyshard(["--runtime", "deno", "run", scriptPath("behave.ts")], { LD_LIBRARY_PATH: folder });
    assert.equal(linked.status, 0, linked.stderr);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("fullyshard says how to install a runtime where there is none", { skip }, () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-bin-`);
  try {
    cpSync(bin, `${folder}/bin`, { recursive: true });
    const unfindable = { PATH: folder, FULLYSHARD_BUN: "", FULLYSHARD_DENO: "" };
    const none = fullyshard(["run", "x.ts"], unfindable, `${folder}/bin/`);
    assert.equal(none.status, 127);
    assert.match(none.stderr, /found neither bun nor deno in node_modules or on PATH.*npm install bun/);
    // The file that the bun package leaves where its install script did not run is no program.
    mkdirSync(`${folder}/node_modules/bun/bin`, { recursive: true });
    writeFileSync(`${folder}/node_modules/bun/bin/bun.exe`, 'echo "not installed"\n', { mode: 0o755 });
    symlinkSync(`${folder}/node_modules/bun/bin/bun.exe`, `${folder}/bun`);
    assert.equal(fullyshard(["run", "x.ts"], unfindable, `${folder}/bin/`).status, 127);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("fullyshard starts ranks by a Deno that is a link", { skip }, () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-test-`);
  try {
    const deno = spawnSync("deno", ["eval", "console.log(Deno.execPath())"], { encoding: "utf8" }).stdout.trim();
    symlinkSync(deno, `${folder}/deno`);
    const variables = { FULLYSHARD_DENO: `${folder}/deno` };
    const { status, stdout, stderr } = fullyshard(["--runtime", "deno", "run", scriptPath("report.ts")], variables);
    assert.equal(status, 0, stderr);
    assert.match(stdout, /^\[rank0\] /);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

/** Starts the command and resolves when its output matches. */
async function started(args: readonly string[], pattern: RegExp): Promise<{ child: ChildProcess; stdout: string }> {
  const child = spawn(node, [`${bin}fullyshard.mjs`, ...args], { stdio: ["ignore", "pipe", "inherit"], cwd: bin });
  let stdout = "";
  await new Promise<void>((resolve, reject) => {
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout += text;
      if (pattern.test(stdout)) resolve();
    });
    child.once("exit", () => reject(new Error(`It ended before its output matched ${pattern}: ${stdout}`)));
  });
  return { child, stdout };
}

const parentOf = (pid: number): number =>
  Number(/^PPid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);

for (const runtime of ["bun", "deno"]) {
  test(`fullyshard leaves nothing behind when it is killed, under ${runtime}`, { skip }, async () => {
    const args = [
      "--runtime",
      runtime,
      "run",
      "--nproc-per-node",
      "2",
      scriptPath("behave.ts"),
      "0:stubborn",
      "1:wait",
    ];
    const { child, stdout } = await started(args, /(pid \d+[^]*){2}/);
    const ranks = pidsAfter("pid", stdout);
    const launcher = parentOf(ranks[0] ?? 0);
    assert.equal(parentOf(launcher), child.pid);
    child.kill("SIGKILL");
    await untilDead([launcher, ...ranks]);
  });

  const needsScript = skip || (spawnSync("script", ["--version"]).status === 0 ? false : "needs util-linux's script");
  test(`fullyshard lets ranks save when its terminal is closed, under ${runtime}`, { skip: needsScript }, async () => {
    const folder = mkdtempSync(`${tmpdir()}/fullyshard-bin-`);
    try {
      const run = `--runtime ${runtime} run --nproc-per-node 2 ${runtime === "deno" ? "--deno-args=-A" : ""} ${
        scriptPath("hang_up.ts")
      } ${folder}`;
      const command = `exec ${node} ${bin}fullyshard.mjs ${run}`;
      const terminal = spawn("script", ["-qec", command, "/dev/null"], { stdio: "ignore", cwd: bin });
      const has = (name: string): boolean => existsSync(`${folder}/${name}`);
      const until = async (holds: () => boolean): Promise<void> => {
        const deadline = Date.now() + 60_000;
        while (!holds()) {
          assert.ok(Date.now() < deadline, `only ${readdirSync(folder)}`);
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      };
      await until(() => has("started-0") && has("started-1"));
      const ranks = [0, 1].map((rank) => Number(readFileSync(`${folder}/started-${rank}`, "utf8")));
      const launcher = parentOf(ranks[0] ?? 0);
      const wrapper = parentOf(launcher);
      terminal.kill("SIGKILL");
      await untilDead([wrapper, launcher, ...ranks]);
      assert.ok(has("saved-0") && has("saved-1"), String(readdirSync(folder)));
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}
