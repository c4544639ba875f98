/** `fullyshard inspect`, `diff`, `merge` and `reshard`: checkpoints without ranks. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { after, before, describe } from "node:test";
import { fileURLToPath } from "node:url";
import { TINY_LLAMA } from "../checkpoint/bed.ts";
import { runRanks } from "../checkpoint/run_ranks.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const [two, three, other, hf] = ["two", "three", "other", "hf"].map((name) => folder.file(name));
const first = `${two}/checkpoint-7`;

function run(...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync("node", [bin, "--runtime", RUNTIME, ...args], { encoding: "utf8" });
  return { code: status, stdout, stderr };
}

before(async () => {
  const common = { seed: 4, step: 7, llama: TINY_LLAMA };
  const outcomes = await runRanks([
    { ...common, do: "save", world: 2, directory: two ?? "" },
    { ...common, do: "save", world: 3, directory: three ?? "" },
    { ...common, do: "save", world: 2, directory: other ?? "", seed: 5 },
    { ...common, do: "save-hf", world: 2, directory: hf ?? "" },
  ]);
  for (const { error } of outcomes.flat()) assert.equal(error, "");
});

describe("fullyshard inspect", () => {
  it("tells what a checkpoint holds, and that its bytes are right", () => {
    const { code, stdout, stderr } = run("inspect", first, "--tensors", "--verify");
    assert.equal(code, 0, stderr);
    assert.match(
      stdout,
      /checkpoint-7: sharded checkpoint, \d+ files, .*, all checksums right\nStep 7, saved by 2 ranks \(.*cpuMath wasm/,
    );
    assert.match(stdout, /11 tensors of 2480 elements; 22 states of the optimizer/);
    assert.match(stdout, /\n {2}model\.embed_tokens\.weight F32 \[32, 16\]/);
    const facts = JSON.parse(run("inspect", first, "--json").stdout);
    assert.deepEqual([facts.step, facts.world_size, facts.parameters, facts.verified], [7, 2, 2480, false]);
    assert.match(run("inspect", hf ?? "").stdout, /hf: weights, 1 file, .*\n11 tensors of 2480 elements; no optimizer/);
  });

  it("refuses what is damaged or not there, and says what is", () => {
    const damaged = folder.file("damaged");
    fs.cpSync(first, damaged, { recursive: true });
    const file = `${damaged}/shard-00001-model-00001-of-00001.safetensors`;
    const place = fs.existsSync(file)
      ? file
      : `${damaged}/${fs.readdirSync(damaged).find((name) => name.startsWith("shard-"))}`;
    const bytes = fs.readFileSync(place);
    bytes[bytes.length - 1] = (bytes[bytes.length - 1] ?? 0) ^ 1;
    fs.writeFileSync(place, bytes);
    const { code, stderr } = run("inspect", damaged, "--verify");
    assert.equal(code, 2);
    assert.match(stderr, /shard-.*: Bytes 0 to \d+ should have checksum \w+, got \w+: it is damaged/);
    assert.match(
      run("inspect", hf ?? "", "--verify").stderr,
      /Cannot verify it: only sharded checkpoints have checksums/,
    );
    assert.match(run("inspect", folder.file("nothing")).stderr, /Expected a directory with weights, got none/);
    assert.match(run("inspect").stderr, /arguments: expected <checkpoint>, got nothing/);
    assert.match(run("inspect", first, "--verfy").stderr, /Did you mean '--verify'/);
  });
});

describe("fullyshard diff", () => {
  it("finds checkpoints of other numbers of ranks, and folders, equal", () => {
    for (const second of [`${three}/checkpoint-7`, hf ?? ""]) {
      const { code, stdout, stderr } = run("diff", first, second);
      assert.equal(code, 0, stdout + stderr);
      assert.match(stdout, /^No difference in (33|11) tensors\n$/);
    }
  });

  it("names what differs, and ends with 1", () => {
    const { code, stdout } = run("diff", first, `${other}/checkpoint-7`);
    assert.equal(code, 1);
    assert.match(stdout, /model\.embed_tokens\.weight: \d+ of 512 elements differ, by at most [\d.]+\n/);
    const { differences } = JSON.parse(run("diff", first, `${other}/checkpoint-7`, "--json").stdout);
    assert.ok(differences.length > 10 && differences.every(({ kind }: { kind: string }) => kind === "values"));
    assert.match(run("diff", first).stderr, /arguments: expected <checkpoint> <checkpoint>, got '/);
  });
});

describe("fullyshard merge", () => {
  it("writes the folder that ranks write", () => {
    const to = folder.file("merged");
    const { code, stdout, stderr } = run("merge", first, to);
    assert.equal(code, 0, stderr);
    assert.match(stdout, /Wrote 9\.7 KiB of weights to '/);
    for (const name of fs.readdirSync(hf ?? "")) {
      assert.deepEqual(fs.readFileSync(`${to}/${name}`), fs.readFileSync(`${hf}/${name}`), name);
    }
    assert.match(run("merge", first, to).stderr, /folder: expected a folder without weights, or --overwrite .*, got '/);
    const rounded = run("merge", first, to, "--overwrite", "--dtype", "bfloat16");
    assert.match(rounded.stdout, /Wrote 4\.8 KiB/);
  });

  it("takes PyTorch's shards, which have no config of their own", () => {
    const shards = folder.file("shards");
    fs.mkdirSync(shards);
    for (const name of fs.readdirSync(first)) {
      if (name.startsWith("shard-")) fs.copyFileSync(`${first}/${name}`, `${shards}/${name}`);
    }
    assert.match(run("merge", shards, folder.file("no")).stderr, /config\.json': there is no such file/);
    const { code, stderr } = run(
      "merge",
      shards,
      folder.file("from-torch"),
      "--model-config",
      hf ?? "",
      "--max-shard-bytes",
      "4000",
    );
    assert.equal(code, 0, stderr);
    assert.match(run("diff", folder.file("from-torch"), hf ?? "").stdout, /^No difference in 11 tensors\n$/);
  });
});

describe("fullyshard reshard", () => {
  longTest("rewrites a checkpoint that loads as before", async () => {
    const to = folder.file("cut/checkpoint-7");
    const { code, stdout, stderr } = run("reshard", first, to, "--nproc", "3");
    assert.equal(code, 0, stderr);
    assert.match(stdout, /Wrote .* for 3 ranks to '/);
    assert.match(run("diff", first, to).stdout, /^No difference in 33 tensors\n$/);
    assert.equal(JSON.parse(run("inspect", to, "--json", "--verify").stdout).world_size, 3);
    const [outcomes] = await runRanks([{
      do: "load",
      world: 2,
      directory: folder.file("cut"),
      seed: 4,
      step: 7,
      llama: TINY_LLAMA,
    }]);
    assert.deepEqual(outcomes?.map(({ error, wrong }) => [error, wrong]), [["", 0], ["", 0]]);
    assert.match(
      run("reshard", first, to, "--nproc", "2").stderr,
      /checkpoint: expected a name that is free: .*, got '.*', which exists/,
    );
    assert.match(
      run("reshard", hf ?? "", folder.file("x"), "--nproc", "2").stderr,
      /Expected a sharded checkpoint, with a manifest/,
    );
    assert.ok(!fs.existsSync(folder.file("x")) && !fs.existsSync(`${folder.file("x")}.partial`));
  });

  it("like the others, explains itself", () => {
    for (const name of ["inspect", "diff", "merge", "reshard"]) {
      const { code, stdout } = run(name, "--help");
      assert.equal(code, 0);
      assert.match(stdout, new RegExp(`fullyshard ${name} <checkpoint>`));
    }
  });
});
