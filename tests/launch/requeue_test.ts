/**
 * The example of a job that SLURM puts into the queue again, with a stand-in for `scontrol` and a plain signal.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { chmodSync, readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { programOf, RUNTIME } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { flagsIn } from "../train/runs.ts";

const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));

/** A program in a folder, as a shell's script. */
function program(folder: TemporaryDirectory, name: string, text: string): string {
  const path = folder.write(name, `#!/bin/sh\n${text}\n`);
  chmodSync(path, 0o755);
  return path;
}

test("requeue.sbatch saves at SIGUSR1, and puts the job into the queue again", { timeout: 60_000 }, async () => {
  using folder = temporaryDirectory();
  const runtime = programOf(RUNTIME) ?? RUNTIME;
  const launcher = `${runtime} ${RUNTIME === "deno" ? "run -A --no-check " : ""}${pathOf("../../src/cli/main.ts")}`;
  // The example trains by 'fullyshard train'; a script with a small model takes the same flags.
  const train = program(
    folder,
    "train",
    `shift; exec ${launcher} run "$1" "$2" --deno-args='-A --no-check' ${pathOf("../train/scripts/tiny.ts")} "$@"`
      .replace('"$@"', '$(shift 2; echo "$@")'),
  );
  program(folder, "scontrol", `echo "$@" > ${folder.file("asked")}`);
  const flags = flagsIn(folder, "--steps", "100000");
  const job = spawn("bash", [pathOf("../../examples/clusters/requeue.sbatch"), ...flags], {
    env: {
      ...process.env,
      PATH: `${folder.path}:${process.env["PATH"]}`,
      SLURM_SUBMIT_DIR: folder.path,
      SLURM_JOB_ID: "77",
      ...{ RANKS: "1", OUT: folder.file("out"), FULLYSHARD: train },
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const code = await new Promise((resolve) => {
    for (const stream of [job.stdout, job.stderr]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        const before = /step 2\//.test(said);
        said += text;
        // After `job.kill`, Deno tells the signal that was sent as the one that ended the process.
        if (!before && /step 2\//.test(said)) process.kill(job.pid ?? 0, "SIGUSR1");
      });
    }
    job.once("close", resolve);
  });
  assert.equal(code, 0, said);
  assert.match(said, /SIGUSR1 came: saving after this step/);
  assert.match(said, /Saved '.*out\/checkpoint-\d+'\n[^]*Stopped after step \d+ of 100000, as SIGUSR1 came/);
  assert.equal(readFileSync(folder.file("asked"), "utf8"), "requeue 77\n");
});
