/**
 * The command `fullyshard` started by Node, which has to find a runtime first.
 *
 * @module
 */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { sharedTest as test } from "../support/share.ts";
import { fileURLToPath } from "node:url";
import { scriptPath } from "./launcher.ts";

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
    // What the bun package leaves where its install script did not run is no program.
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
