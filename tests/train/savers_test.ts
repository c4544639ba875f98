/** Flags that save memory, through the launcher: the run that has none, to the bit. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, flagsIn, losses } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

longTest("a run with checkpointed activations and offloaded states is the run without, also over a resume", {
  timeout: 180_000,
}, async () => {
  using folder = temporaryDirectory();
  const steps = ["--steps", "6"];
  succeeds(await run(flagsIn(folder, ...steps)));
  const expected = losses(folder);
  const disk = folder.file("disk");
  folder.write("disk/kept", "");
  const flags = ["--cpu-offload", "--offload-states", disk, "--activation-checkpointing", "full"];
  const saving = flagsIn(folder, ...steps, ...flags, "--out", folder.file("saving"));
  succeeds(await run([...saving, "--stop-after", "3"]));
  succeeds(await run([...saving, "--resume", "auto"]));
  assert.deepEqual(losses(folder, "saving"), expected);
  const [a, b] = ["out", "saving"].map((out) => readFileSync(folder.file(`${out}/model/model.safetensors`)));
  assert.ok(a !== undefined && b !== undefined && a.equals(b), "the models differ");
  assert.deepEqual(readdirSync(disk), ["kept"]);
});

test(
  "a folder for states that is not there, and one setting by two names, are refused",
  { timeout: 60_000 },
  async () => {
    using folder = temporaryDirectory();
    const offload = ["--cpu-offload", "--offload-states", folder.file("none")];
    const missing = await run(flagsIn(folder, "--steps", "6", ...offload, "--out", folder.file("x")));
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, /Cannot write '.*none\/\.fullyshard-states-.*': there is no such file or directory/);
    const twice = await run(
      flagsIn(folder, "--activation-checkpointing", "full", "--gradient-checkpointing", "--out", folder.file("y")),
    );
    assert.equal(twice.code, 2);
    assert.match(
      twice.stderr,
      /gradientCheckpointing: expected activationCheckpointing or gradientCheckpointing, not both/,
    );
  },
);
