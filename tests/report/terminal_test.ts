/** Runs in a terminal: the curve, bars, the screen of a run, and `fullyshard watch` on a pipe and on a terminal. @module */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { appendFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { readRun } from "../../src/report/read_run.ts";
import { bar, plotBraille } from "../../src/report/terminal/braille.ts";
import { screenOf } from "../../src/report/terminal/screen.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { metricsLine, writeStoredRun } from "../support/stored_run.ts";
import { sharedTest } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const pathOf = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
const command = ["node", pathOf("../../bin/fullyshard.mjs"), "--runtime", RUNTIME, "watch"] as const;
const TIMEOUT = { timeout: 60_000 };

test("plotBraille() draws dots and the lines between them", () => {
  assert.equal(plotBraille([], 4, 2), undefined);
  assert.equal(plotBraille([null, NaN], 4, 2), undefined);
  // Columns of four dots: from the top left to the bottom right.
  assert.deepEqual(plotBraille([3, 0], 1, 1), { lines: ["⢱"], top: 3, bottom: 0 });
  assert.deepEqual(plotBraille([0, 1, 2, 3], 2, 1)?.lines, ["⡠⠊"]);
  assert.deepEqual(plotBraille([5, 5, null, 5], 2, 1)?.lines, ["⠤⠠"]);
  assert.deepEqual(plotBraille([0, 7], 1, 2)?.lines, ["⢸", "⡸"]);
  const { lines = [] } = plotBraille(Array.from({ length: 1000 }, (_, i) => i), 10, 3) ?? {};
  assert.deepEqual(lines.map((line) => [...line].length), [10, 10, 10]);
});

test("bar() fills eighths", () => {
  assert.deepEqual([0, 1, 4, 8, 9, 16, 99].map((part) => bar(part, 16, 2)), ["  ", "▏ ", "▌ ", "█ ", "█▏", "██", "██"]);
  assert.equal(bar(1, 0, 2), "  ");
});

test("screenOf() shows state, numbers, curve, memory, ranks and warnings within the terminal", () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "tiny", { warning: "late\u001b[31m\nagain" });
  const rank = { rank: 1, state: "waiting", call: "gather 'model.layers.1'", step: 7 };
  appendFileSync(`${run}/events.jsonl`, `${JSON.stringify({ type: "ranks", time: 0, ranks: [rank] })}\n`);
  for (const [columns, rows] of [[40, 20], [120, 40]] as const) {
    const lines = screenOf(readRun(run), "running", { columns, rows });
    assert.ok(lines.every((line) => [...line].length <= columns), lines.join("\n"));
    const text = lines.join("\n");
    assert.match(text, /^tiny {2}step 40\/40 {2}running {2}2 ranks/);
    assert.match(text, /loss 3\.000 {2}eval_loss 3\.100/);
    assert.match(text, /\n +7\.333 [⠀-⣿]+/);
    assert.match(text, /\n +loss 1 +40\n/);
    assert.match(text, /\nparameters +█+/);
    assert.match(text, /\nrank 1 waiting in gather 'model\.layer/);
    assert.match(text, /warn {2}\[rank 1\] late\\u001b\[/);
    // Numbers that do not fit are left out whole, and a line that is cut says so.
    const [, numbers = ""] = lines;
    assert.match(numbers, columns === 40 ? /^loss \S+ {2}eval_loss \S+( {2}norm \S+)?$/ : / {2}tokens\/s [\d ]+$/);
    const [head = ""] = lines.filter((line) => line.startsWith("Peak memory"));
    assert.match(head, /^Peak memory of rank 0, to step \d+$/);
    assert.equal(lines.some((line) => line.endsWith("…")), columns === 40);
  }
});

sharedTest("fullyshard watch prints a run that has ended, and one that was killed", TIMEOUT, () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "tiny");
  const ended = spawnSync(command[0], [...command.slice(1), run], { encoding: "utf8" });
  assert.equal(ended.status, 0, ended.stderr);
  const lines = ended.stdout.split("\n");
  assert.match(lines[0] ?? "", /^step 31 {2}loss /);
  assert.deepEqual(lines.slice(10), [
    "warn  [rank 1] a disk is slow",
    "saved runs/tiny/checkpoint-20",
    "finished at step 40",
    "",
  ]);
  const none = spawnSync(command[0], [...command.slice(1), folder.path], { encoding: "utf8" });
  assert.equal(none.status, 2);
  assert.match(none.stderr, /Cannot read the run in '.*': it holds neither/);
});

sharedTest("fullyshard watch follows a run that was started without it, until it ends", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "tiny", { steps: 3 });
  writeFileSync(`${run}/events.jsonl`, `${JSON.stringify({ type: "start", time: 0, step: 0 })}\n`);
  // The lock of a process that lives: this one.
  writeFileSync(`${run}/.fullyshard.lock`, "");
  const child = spawn(command[0], [...command.slice(1), run, "--interval", "0.05"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let text = "";
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  let goOn = (): void => {};
  child.stdout.setEncoding("utf8").on("data", (piece: string) => {
    text += piece;
    if (/step 3 /.test(text)) goOn();
  });
  await new Promise<void>((resolve) => goOn = resolve);
  assert.doesNotMatch(text, /step 4 /);
  goOn = () => {};
  appendFileSync(`${run}/metrics.jsonl`, `${metricsLine(4)}\n`);
  appendFileSync(`${run}/events.jsonl`, `${JSON.stringify({ type: "end", time: 0, step: 4, outcome: "stopped" })}\n`);
  spawnSync("rm", [`${run}/.fullyshard.lock`]);
  assert.equal(await ended, 0);
  assert.match(text, /step 3 [^]*step 4 [^]*stopped at step 4\n$/);
});

sharedTest("fullyshard watch draws on a terminal, and Ctrl-C gives the terminal back", TIMEOUT, (context) => {
  if (spawnSync("python3", ["--version"]).status !== 0) return context.skip("needs Python 3, for a terminal");
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "tiny");
  writeFileSync(`${run}/.fullyshard.lock`, "");
  const { status, stdout, stderr } = spawnSync(
    "python3",
    [pathOf("../cli/in_terminal.py"), JSON.stringify([["gathered", "\u0003"]]), ...command, run],
    { encoding: "utf8", env: { ...process.env, TERM: "xterm", CI: "" } },
  );
  assert.equal(status, 130, stderr);
  assert.ok(stdout.startsWith("\u001b[?1049h\u001b[?25l\u001b[Htiny  step 40/40  running"), stdout);
  assert.ok(stdout.endsWith("\u001b[?25h\u001b[?1049l"));
});
