/** A run's output folder: one run at a time, also after a run was killed. @module */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync } from "node:fs";
import process from "node:process";
import { after } from "node:test";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "../train/kept_ranks.ts";
import { flagsIn, metricLines, run, startAlone, startRun } from "../train/runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());

const TIMEOUT = { timeout: 120_000 };

for (const launcher of [true, false]) {
  test(
    `of two runs that begin at one moment in a folder, one trains and one is refused (${
      launcher ? "two ranks" : "alone"
    })`,
    TIMEOUT,
    async () => {
      using folder = temporaryDirectory();
      // The first one still trains when the second one comes.
      const flags = flagsIn(folder, "--steps", "12", "--save-every", "2", "--keep-last", "2", "fault=0:2:sleep=3");
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
        "events.jsonl",
        "metrics.jsonl",
        "model",
        "run.json",
      ]);
    },
  );
}

longTest("a run that was killed leaves no lock: it goes on at once", TIMEOUT, async () => {
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

test(
  "--overwrite leaves no model of another run beside new checkpoints, and leaves all where the run does not begin",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = flagsIn(folder, "--steps", "2");
    assert.equal((await kept.run(flags, { ranks: 1 })).code, 0);
    const lines = metricLines(folder);
    const model = readFileSync(folder.file("out/model/model.safetensors"));
    for (const more of [["--learning-rate", "-1"], ["--eval-data", folder.write("short.txt", "a")]]) {
      const failed = await kept.run([...flags, "--overwrite", ...more], { ranks: 1 });
      assert.equal(failed.code, 2, failed.stderr);
      assert.deepEqual(metricLines(folder), lines);
      assert.deepEqual(readFileSync(folder.file("out/model/model.safetensors")), model);
    }
    // A link to nowhere in the model's place would fail the last save.
    const linked = flagsIn(folder, "--steps", "2", "--out", folder.file("linked"));
    mkdirSync(folder.file("linked"));
    symlinkSync("nowhere", folder.file("linked/model"));
    const refused = await kept.run(linked, { ranks: 1 });
    assert.match(refused.stderr, /out: expected a folder without another run's output, got '.*linked' with '.*model'/);
    assert.equal((await kept.run([...linked, "--overwrite"], { ranks: 1 })).code, 0);
    assert.ok(existsSync(folder.file("linked/model/model.safetensors")));

    const stopped = await kept.run([...flags, "--overwrite", "--stop-after", "1"], { ranks: 2 });
    assert.equal(stopped.code, 0, stopped.stderr);
    assert.match(stopped.stderr, /info +\[rank 0\] Removed '.*out\/model', which another run had left\n/);
    assert.deepEqual(readdirSync(folder.file("out")).sort(), [
      "checkpoint-1",
      "events.jsonl",
      "metrics.jsonl",
      "run.json",
    ]);
  },
);

longTest("--set-aside keeps what other runs left, and goes on where it is told to", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "2", "--save-every", "1", "--set-aside");
  const first = await kept.run(flags, { ranks: 1 });
  assert.equal(first.code, 0, first.stderr);
  assert.doesNotMatch(first.stderr, /Kept/);
  folder.write("out/notes.txt", "mine");
  const left = ["checkpoint-1", "checkpoint-2", "events.jsonl", "metrics.jsonl", "model", "run.json"];
  const contents = (out: string): readonly string[] =>
    left.slice(3, 4).map((name) => readFileSync(folder.file(`${out}/${name}`), "utf8"));
  const before = contents("out");
  // Files that the run reads until its end are not moved away meanwhile.
  const own = await kept.run([...flags, "--model", folder.file("out/model")], { ranks: 1 });
  assert.equal(own.code, 2);
  assert.match(
    own.stderr,
    /model: expected a folder that is not another run's output in 'out', got '.*out\/model', which the run would replace/,
  );
  const both = await kept.run([...flags, "--overwrite"], { ranks: 1 });
  assert.match(both.stderr, /setAside: expected overwrite or setAside, got both: one removes/);
  assert.deepEqual(readdirSync(folder.file("out")).sort(), [...left.slice(0, -1), "notes.txt", "run.json"]);

  for (const number of [1, 2]) {
    const next = await kept.run([...flags, "--seed", String(number), "--stop-after", "1"], { ranks: 2 });
    assert.equal(next.code, 0, next.stderr);
    const said = new RegExp(`info +\\[rank 0\\] Kept what another run had left in '.*out' as '.*out-${number}'\\n`);
    assert.match(next.stderr, said);
  }
  assert.deepEqual(readdirSync(folder.file("out-1")).sort(), left);
  assert.deepEqual(contents("out-1"), before);
  assert.deepEqual(readdirSync(folder.file("out-2")).sort(), [
    "checkpoint-1",
    "events.jsonl",
    "metrics.jsonl",
    "run.json",
  ]);
  assert.deepEqual(readdirSync(folder.file("out")).sort(), [
    "checkpoint-1",
    "events.jsonl",
    "metrics.jsonl",
    "notes.txt",
    "run.json",
  ]);
  const resumed = await kept.run([...flags, "--seed", "2", "--resume", "auto"], { ranks: 1 });
  assert.equal(resumed.code, 0, resumed.stderr);
  assert.doesNotMatch(resumed.stderr, /Kept/);
  assert.equal(metricLines(folder).length, 2);
  assert.ok(!existsSync(folder.file("out-3")));
});

longTest("flags that npm took are refused on every rank before anything is written", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const npm = { npm_lifecycle_event: "train", npm_command: "run", npm_config_user_agent: "npm/11.0.0 node/v24" };
  const usual = { npm_config_cache: "/home/a/.npm", npm_config_yes: "" };
  for (const runtime of ["bun", "deno"] as const) {
    const { code, stderr } = await run(flagsIn(folder), {
      runtime,
      env: { ...npm, ...usual, npm_config_steps: "3", npm_config_save_every: "2" },
    });
    assert.equal(code, 2, stderr);
    assert.match(
      stderr,
      /expected flags of the run behind '--', got npm's own flags .*Give 'npm run train -- .*--steps 3/,
    );
    const launcher = await run(flagsIn(folder), { runtime, env: { ...npm, ...usual, npm_config_nproc_per_node: "4" } });
    assert.equal(launcher.code, 2);
    assert.match(launcher.stderr, /fullyshard run: .*\n.*Give 'npm run train -- --nproc-per-node 4'/);
  }
  const alone = await startAlone(flagsIn(folder), { env: { ...npm, ...usual, npm_config_resume: "true" } }).ended;
  assert.equal(alone.code, 2);
  assert.match(alone.stderr, /Give 'npm run train -- --resume <value>'/);
  assert.ok(!existsSync(folder.file("out")));
  const fine = await run(flagsIn(folder, "--steps", "1"), { ranks: 1, env: { ...npm, ...usual } });
  assert.equal(fine.code, 0, fine.stderr);
});
