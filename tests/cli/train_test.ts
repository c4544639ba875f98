/** `fullyshard train`: flags of the launcher and of the training in any order, and a training without a script. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, openModel } from "../../mod.ts";
import { divide } from "../../src/cli/train.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
/** Writes a small Llama with a tokenizer. */
async function writeModel(folder: string): Promise<void> {
  await using run = await launch();
  const sizes = { hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2 };
  const model = await openModel(run, { model_type: "llama", vocab_size: 4096, max_position_embeddings: 64, ...sizes });
  await model.load();
  await model.save(folder);
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    copyFileSync(`${root}examples/data/${name}`, `${folder}/${name}`);
  }
}

function train(folder: string, ...args: readonly string[]) {
  const command = [`${root}bin/fullyshard.mjs`, "--runtime", RUNTIME, "train", ...args];
  return spawnSync("node", command, { encoding: "utf8", cwd: folder });
}

describe("fullyshard train", () => {
  it("gives the launcher its flags and the ranks all others, each in their order", () => {
    const { launcher, training } = divide([
      ...["--steps", "5", "--nproc_per_node=2", "--cpu-offload", "--log-dir", "logs", "-r", "3", "--standalone"],
      ...["--data", "a.txt", "b.txt", "--nproc", "4", "--out=o"],
    ]);
    assert.deepEqual(launcher, [
      ...["--nproc_per_node=2", "--log-dir", "logs", "-r", "3", "--standalone", "--nproc", "4"],
    ]);
    assert.deepEqual(training, ["--steps", "5", "--cpu-offload", "--data", "a.txt", "b.txt", "--out=o"]);
  });

  it("trains on the ranks that are asked for", async () => {
    using folder = temporaryDirectory();
    await writeModel(folder.file("llama"));
    writeFileSync(folder.file("text.txt"), "Each rank keeps a shard. ".repeat(200));
    const { status, stdout, stderr } = train(
      folder.path,
      ...["--data", "text.txt", "--nproc-per-node", "2", "--steps", "2", "--sequence-length", "16", "--out", "out"],
      ...["--model", "llama", "--sample-tokens", "0"],
    );
    assert.equal(status, 0, stderr);
    assert.match(stderr + stdout, /over 2 ranks/);
    assert.match(stdout, /step 2\/2/);
    assert.ok(existsSync(folder.file("out/model/model.safetensors")));
  });

  it("shows the flags of both, and reports wrong ones by name", () => {
    using folder = temporaryDirectory();
    const help = train(folder.path, "--help");
    assert.equal(help.status, 0);
    assert.match(help.stdout, /^Usage: fullyshard train \[flags\]\n/);
    for (const flag of ["--nproc-per-node", "--sequence-length", "--lora-r"]) {
      assert.ok(help.stdout.includes(flag), flag);
    }
    const nproc = train(folder.path, "--nproc", "2");
    assert.equal(nproc.status, 2);
    assert.match(nproc.stderr, /--nproc: .*--nproc-per-node/s);
    const unknown = train(folder.path, "--stepps", "2", "--model", "llama");
    assert.notEqual(unknown.status, 0);
    assert.match(unknown.stdout + unknown.stderr, /--stepps: expected a known flag, got '--stepps'.*--steps/s);
  });
});
