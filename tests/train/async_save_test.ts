/** Runs that save while they train, as a user starts them. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { essence, flagsIn, metricLines } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 60_000 };

longTest("--async-save changes no byte of checkpoints, model and losses, nor of a resume", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "8", "--save-every", "2", "--keep-last", "2");
  const [blocking, aside] = [folder.file("out"), folder.file("aside")];
  const whole = await run(flags);
  const first = await run([...flags, "--out", aside, "--async-save", "--stop-after", "5"]);
  const resumed = await run([...flags, "--out", aside, "--async-save", "--resume", "auto"]);
  for (const { code, stderr } of [whole, first, resumed]) assert.equal(code, 0, stderr);
  for (const step of [2, 4, 5]) assert.match(first.stderr, new RegExp(`Saved '.*checkpoint-${step}'`));
  assert.match(resumed.stderr, /Resumed '.*checkpoint-5' at step 5/);
  assert.deepEqual(metricLines(folder, "aside").map(essence), metricLines(folder).map(essence));
  for (const part of ["checkpoint-8", "model"]) {
    const names = readdirSync(`${blocking}/${part}`).sort();
    assert.deepEqual(readdirSync(`${aside}/${part}`).sort(), names);
    for (const name of names) {
      const [bytes, expected] = [aside, blocking].map((out) => readFileSync(`${out}/${part}/${name}`));
      assert.ok(expected !== undefined && bytes?.equals(expected), `${part}/${name}`);
    }
  }
  // The checkpoint resumed from is never removed.
  assert.deepEqual(readdirSync(aside).sort(), [
    "checkpoint-5",
    "checkpoint-8",
    "events.jsonl",
    "metrics.jsonl",
    "model",
    "run.json",
  ]);
  const [peak, expected] = [whole, resumed].map(({ stderr }) =>
    /Peak memory of a rank: (.*) \(predicted (.*)\)/.exec(stderr)
  );
  assert.equal(expected?.[1], expected?.[2], "a peak that was not predicted");
  assert.notEqual(expected?.[1], peak?.[1], "the copy is not counted");
});

test("--async-save refuses a Hugging Face model in each checkpoint, and to save none", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, "--async-save", "--state-dict-type", "full"));
  assert.equal(code, 2, stderr);
  assert.match(
    stderr,
    /stateDictType: expected sharded with asyncSave, got 'full', which cannot be saved in the background; .*merge/,
  );
  assert.match(stderr, /saveEvery: expected at least 1 with asyncSave, got 0, so no checkpoint would be written/);
});
