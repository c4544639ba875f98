/** `npm run bench` as a program: what it refuses, and what is left of it when it is ended. @module */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { rank, ROOT } from "../../bench/process.ts";
import { STEP } from "../../bench/step.ts";
import { longTest, sharedTest as test } from "../support/share.ts";

function refused(...args: readonly string[]): string {
  const [program, ...rest] = rank("bun", "bench/main.ts", ...args);
  const { status, stdout, stderr } = spawnSync(program, rest, { cwd: ROOT, encoding: "utf8", timeout: 30_000 });
  assert.deepEqual([status, stdout], [2, ""], args.join(" "));
  return stderr;
}

longTest("bench refuses a case that there is not, and counts that are no whole numbers", () => {
  assert.match(
    refused("startup", "--case", "nothing"),
    /^--case: expected a part of two-ranks-one-all-reduce, got nothing$/m,
  );
  for (const flag of ["--rounds", "--threads"]) {
    for (const count of ["0", "1.5", "Infinity", "many"]) {
      const said = refused("gemm", flag, count);
      assert.ok(said.startsWith(`${flag}: expected a positive integer, got ${count}\n`), said);
    }
  }
});

longTest("bench refuses threads of a subject that computes with none, and names those that do", () => {
  const expected = "expected one of adapt, attention, dispatch, gemm, kernels, step, which take threads, got";
  for (const subject of ["checkpoint", "collectives", "large", "routing", "startup"]) {
    assert.ok(refused(subject, "--threads", "2").startsWith(`--threads: ${expected} ${subject}\n`), subject);
    const said = refused(subject, "--threads", "2", "--peer", "one-thread");
    assert.ok(said.startsWith(`--peer one-thread: ${expected} ${subject}\n--threads: ${expected} ${subject}\n`), said);
  }
  assert.match(refused("large", "--peer", "torch"), /^--peer: expected none for large, got torch$/m);
});

/** Processes that one started, and those that they started. */
function descendants(pid: number): readonly number[] {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ").filter((one) =>
    one !== ""
  );
  return children.map(Number).flatMap((child) => [child, ...descendants(child)]);
}

function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

for (const [signal, code] of [["SIGINT", 130], ["SIGTERM", 143]] as const) {
  test(`bench that gets ${signal} ends its ranks, and tells no figure`, async (context) => {
    if (process.platform !== "linux") return context.skip("needs /proc");
    const [program, ...rest] = rank("bun", "bench/main.ts", "step", "--case", "llama-8m-f32", "--rounds", "3");
    const child = spawn(program, rest, { cwd: ROOT, stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    child.stdout.on("data", (chunk) => said += chunk);
    const { pid } = child;
    assert.ok(pid !== undefined);
    const ended = once(child, "exit");
    let started: readonly number[] = [];
    // A launcher and two ranks.
    while (started.length < 3) {
      await sleep(50);
      started = descendants(pid);
    }
    await sleep(500);
    process.kill(pid, signal); // by child.kill() Deno would report the signal in place of the code
    assert.deepEqual(await ended, [code, null]);
    // The process that watches a launcher ends after it.
    for (let waited = 0; waited < 5000 && started.some(isRunning); waited += 50) await sleep(50);
    assert.deepEqual(started.filter(isRunning), []);
    assert.equal(said, "");
  });
}

test("a step's share of the peak is that of the cores that compute it", async (context) => {
  if (spawnSync("gcc", ["--version"]).status !== 0) return context.skip("needs gcc");
  const shareOf = async (ranks: number, threads: number): Promise<number> => {
    const told = await STEP.more?.(
      { runtime: "bun", python: "python3", ranks, threads },
      "llama-8m-f32",
      500,
      undefined,
    );
    return Number(told?.["mfu"]) * Number(told?.["fmaPeak"]);
  };
  const ofTwo = await shareOf(2, 1);
  assert.ok(ofTwo > 0);
  assert.ok(Math.abs(await shareOf(1, 1) / ofTwo - 1) < 1e-9, "one rank computes half on half of the cores");
  assert.ok(Math.abs(await shareOf(1, 2) / ofTwo - 0.5) < 1e-9, "one rank computes half on the same cores");
});
