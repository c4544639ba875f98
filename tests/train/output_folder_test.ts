/** A run's output folder: one run at a time, whoever is killed. @module */
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import process from "node:process";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, metricLines, run, startAlone, startRun } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };

for (const launcher of [true, false]) {
  test(
    `of two runs that begin at one moment in a folder, one trains and one is refused (${
      launcher ? "two ranks" : "alone"
    })`,
    TIMEOUT,
    async () => {
      using folder = temporaryDirectory();
      const flags = flagsIn(folder, "--steps", "12", "--save-every", "2", "--keep-last", "2");
      const start = launcher ? startRun : startAlone;
      const runs = [start(flags), start([...flags, "--seed", "1"])];
      const ended = await Promise.all(runs.map((one) => one.ended));
      const [lost] = ended.filter(({ code }) => code !== 0);
      assert.deepEqual(ended.map(({ code }) => code).sort(), [0, 1], ended.map(({ stderr }) => stderr).join("\n"));
      assert.match(
        lost?.stderr ?? "",
        /FileError: Cannot write in '.*out': process \d+ on host '.+' \(since [\d-]+ [\d:]+ UTC\) is writing there; give each run a folder of its own with '--out', or stop that one/,
      );
      assert.equal(metricLines(folder).length, 12);
      assert.deepEqual(readdirSync(folder.file("out")).sort(), [
        "checkpoint-10",
        "checkpoint-12",
        "metrics.jsonl",
        "model",
      ]);
    },
  );
}

test("a run that was killed leaves no lock: it goes on at once", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "8", "--save-every", "2");
  const first = startAlone([...flags, "fault=0:5:sleep=60"]);
  await first.until(/step +4\b/);
  // While it lives, one that would overwrite it or resume from it is refused as well.
  for (const how of ["--overwrite", "--resume=auto"]) {
    const { code, stderr } = await run([...flags, how], { ranks: 1 });
    assert.equal(code, 1);
    assert.match(stderr, new RegExp(`process ${first.child.pid} on host`));
  }
  process.kill(first.child.pid ?? 0, "SIGKILL");
  await first.ended;
  const { code, stderr } = await run([...flags, "--resume", "auto"], { ranks: 1 });
  assert.equal(code, 0, stderr);
  assert.match(stderr, /Resumed '.*checkpoint-4' at step 4/);
  assert.deepEqual(metricLines(folder).map((line): number => JSON.parse(line).step), [1, 2, 3, 4, 5, 6, 7, 8]);
});
