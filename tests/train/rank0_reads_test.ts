/** Weights that rank 0 alone reads. @module */
import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, statSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { essence, flagsIn, metricLines, run, startRanks } from "./runs.ts";

const TIMEOUT = { timeout: 60_000 };
const script = fileURLToPath(new URL("scripts/rank0_reads.ts", import.meta.url));

test(
  "openModel() with broadcastFromRank0 reads no weights on rank 1, and gives it the same bits",
  TIMEOUT,
  async (context) => {
    if (process.platform !== "linux") return context.skip("needs /proc/self/io");
    using folder = temporaryDirectory();
    const made = await run(flagsIn(folder, "--steps", "1", "hidden=64"));
    assert.equal(made.code, 0, made.stderr);
    const names = ["config.json", "tokenizer.json", "model.safetensors"];
    for (const [rank, files] of [[0, names], [1, names.slice(0, 2)]] as const) {
      mkdirSync(folder.file(`${rank}/model`), { recursive: true });
      for (const name of files) copyFileSync(folder.file(`out/model/${name}`), folder.file(`${rank}/model/${name}`));
    }
    const ended = await Promise.all(startRanks(2, () => [folder.path], { script }).map(({ ended }) => ended));
    for (const { code, stderr } of ended) assert.equal(code, 0, stderr);
    const reports = ended.map(({ stdout }): Record<"rank" | "read" | "compared" | "equal", number> =>
      JSON.parse(stdout)
    );
    const weights = statSync(folder.file("out/model/model.safetensors")).size;
    const config = statSync(folder.file("out/model/config.json")).size;
    for (const { rank, read, compared, equal } of reports) {
      assert.ok(compared > 0 && equal === compared, `${equal} of ${compared} elements are the same on rank ${rank}`);
      if (rank === 0) assert.ok(read > weights, `rank 0 read ${read} bytes`);
      // The configuration, and what counts the bytes itself.
      else assert.ok(read < config + 4096, `rank 1 read ${read} bytes, of which ${config} are config.json`);
    }
  },
);

longTest("--broadcast-from-rank0 fine-tunes and resumes as ranks do that read for themselves", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "4", "--save-every", "2", "--model");
  const made = await run(flagsIn(folder, "--steps", "1", "--out", folder.file("base")));
  assert.equal(made.code, 0, made.stderr);
  const base = folder.file("base/model");
  const own = await run([...flags, base]);
  const sent = await run([...flags, base, "--out", folder.file("sent"), "--broadcast-from-rank0", "--stop-after", "2"]);
  const resumed = await run([
    ...flags,
    base,
    "--out",
    folder.file("sent"),
    "--broadcast-from-rank0",
    "--resume",
    "auto",
  ]);
  for (const { code, stderr } of [own, sent, resumed]) assert.equal(code, 0, stderr);
  assert.deepEqual(metricLines(folder, "sent").map(essence), metricLines(folder).map(essence));
});
