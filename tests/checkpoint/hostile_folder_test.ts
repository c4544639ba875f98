/** Checkpoints and model folders that name what is not theirs, or lie behind links. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import { describe, it } from "node:test";
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { fullyShard } from "../../mod.ts";
import { overlapIn } from "../../src/checkpoint/format/boxes.ts";
import { writtenFile } from "../../src/checkpoint/format/pieces.ts";
import { bodyChecksum } from "../../src/checkpoint/sharded/manifest.ts";
import { openModel } from "../../src/train/open_model.ts";
import { openRank } from "../fsdp/run.ts";
import type { Rank } from "../fsdp/scenarios.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { SIZES } from "../train/loop_ranks.ts";

type Json = { [key: string]: Json } | Json[] | string | number | boolean | null;

/** A saved model of one rank. */
async function saved(rank: Rank, directory: string, step = 1): Promise<string> {
  const model = await openModel(rank, SIZES, { seed: 3 });
  fullyShard(model, { mesh: rank.group });
  await model.load();
  const { path } = await saveCheckpoint({ directory, step, model, group: rank.group, state: {} });
  return path;
}

/** Changes a manifest, whose checksum is right afterwards. */
function forge(
  path: string,
  change: (text: string, manifest: { files: Record<string, Json>; model: Json }) => string,
): void {
  const file = `${path}/manifest.json`;
  const text = fs.readFileSync(file, "utf8");
  const { crc32: _, ...body } = JSON.parse(change(text, JSON.parse(text)));
  fs.writeFileSync(file, JSON.stringify({ ...body, crc32: bodyChecksum(body) }));
}

async function refusal(rank: Rank, from: string): Promise<string> {
  const model = await openModel(rank, SIZES, { seed: 4 });
  fullyShard(model, { mesh: rank.group });
  const outcome = await loadCheckpoint({ directory: `${from}/..`, from, model, group: rank.group }).then(
    () => "",
    (error: unknown) => String(error),
  );
  assert.ok([...model.parameters()].every(({ storage }) => !storage.hasValues()), "nothing is left of it");
  return outcome;
}

describe("loadCheckpoint()", () => {
  it("reads no file outside of the checkpoint, though its checksums are right", async () => {
    using folder = temporaryDirectory();
    const rank = await openRank();
    const path = await saved(rank, folder.file("run"));
    const shard = fs.readdirSync(path).find((name) => name.endsWith(".safetensors")) ?? assert.fail("no shard");
    const copies = [
      folder.file("outside.safetensors"),
      `${folder.file("run")}/beside.safetensors`,
      `${path}/sub/in.safetensors`,
    ];
    fs.mkdirSync(`${path}/sub`);
    for (const copy of copies) fs.copyFileSync(`${path}/${shard}`, copy);
    const original = fs.readFileSync(`${path}/manifest.json`);
    const names = [
      "../beside.safetensors",
      copies[0] ?? "",
      "sub/in.safetensors",
      "..\\beside.safetensors",
      "..",
      ".",
      "",
    ];
    for (const name of [...names, `./${shard}`, `${shard}\0`, `../checkpoint-1/${shard}`]) {
      fs.writeFileSync(`${path}/manifest.json`, original);
      forge(path, (text) => text.replaceAll(JSON.stringify(shard), JSON.stringify(name)));
      const error = await refusal(rank, path);
      assert.match(
        error,
        /^CheckpointError: .*(files must lie in the checkpoint, got |is missing|files|Expected)/,
        `'${name}': ${error}`,
      );
    }
  });

  it("refuses boxes that overlap and leave elements out, though they are as many", async () => {
    using folder = temporaryDirectory();
    const rank = await openRank();
    const path = await saved(rank, folder.file("run"));
    forge(path, (text) => {
      // The first rows come twice, and the last ones never.
      const changed = text.replace(/"shares":\[\["([^"]+)",\[0,0\],\[(\d+),(\d+)\]\]\]/, (_all, file, rows, width) => {
        const half = Number(rows) / 2;
        return `"shares":[["${file}",[0,0],[${half},${width}]],["${file}",[0,0],[${half},${width}]]]`;
      });
      assert.notEqual(changed, text);
      return changed;
    });
    assert.match(
      await refusal(rank, path),
      /^CheckpointError: .*Expected boxes that share no element, got \[\d+, \d+\] at \[0, 0\] and/,
    );
  });

  it("names what does not fit in a checkpoint of another model, and what changed in one of another configuration", async () => {
    using folder = temporaryDirectory();
    const rank = await openRank();
    const path = await saved(rank, folder.file("run"));
    for (
      const [change, says] of [
        [{ intermediate_size: 40 }, /should have shape|shape/],
        [{ num_hidden_layers: 3 }, /missing/],
        [{ model_type: "gpt2", n_embd: 8, n_head: 2, n_layer: 1, n_positions: 32 }, /missing/],
      ] as const
    ) {
      const model = await openModel(rank, { ...SIZES, ...change }, { seed: 4 });
      await assert.rejects(
        loadCheckpoint({ directory: folder.file("run"), from: path, model, group: rank.group }),
        { name: "CheckpointError", message: says },
      );
      assert.ok([...model.parameters()].every(({ storage }) => !storage.hasValues()));
    }
    const model = await openModel(rank, { ...SIZES, rms_norm_eps: 0.5 }, { seed: 4 });
    const loaded = await loadCheckpoint({ directory: folder.file("run"), from: path, model, group: rank.group });
    assert.ok(loaded?.changes.some((change) => change.includes("rms_norm_eps")), `${loaded?.changes}`);
  });
});

describe("links in the folder of a run", () => {
  it("are removed and replaced without what they lead to", async () => {
    using folder = temporaryDirectory();
    const rank = await openRank();
    const elsewhere = folder.file("elsewhere");
    const first = await saved(rank, elsewhere);
    const run = folder.file("run");
    fs.mkdirSync(run);
    fs.symlinkSync(first, `${run}/checkpoint-1`);
    fs.mkdirSync(folder.file("precious"));
    fs.writeFileSync(folder.file("precious/file"), "kept");
    fs.symlinkSync(folder.file("precious"), `${run}/checkpoint-2.partial`);
    const model = await openModel(rank, SIZES, { seed: 4 });
    const loaded = await loadCheckpoint({ directory: run, from: `${run}/checkpoint-1`, model, group: rank.group });
    assert.equal(loaded?.step, 1);
    for (const step of [1, 2]) {
      await saveCheckpoint({ directory: run, step, model, group: rank.group, state: {}, keepLast: 1 });
    }
    assert.deepEqual(fs.readdirSync(run), ["checkpoint-2"]);
    assert.equal(fs.readFileSync(folder.file("precious/file"), "utf8"), "kept");
    assert.ok(fs.readdirSync(first).includes("manifest.json"));
  });

  it("are replaced by a saved model, whose blobs in a cache stay", async () => {
    using folder = temporaryDirectory();
    const rank = await openRank();
    const [blob, snapshot] = [folder.file("blob"), folder.file("snapshot")];
    fs.mkdirSync(snapshot);
    fs.writeFileSync(blob, "another model's");
    for (const name of ["model.safetensors", "config.json", ".model.safetensors.partial"]) {
      fs.symlinkSync(blob, `${snapshot}/${name}`);
    }
    const model = await openModel(rank, SIZES, { seed: 4 });
    await model.load();
    await model.save(snapshot);
    assert.equal(fs.readFileSync(blob, "utf8"), "another model's");
    assert.deepEqual(writtenFile(fs.readFileSync(blob)).byteLength, 15);
    const again = await openModel(rank, snapshot);
    await again.load();
  });
});

describe("overlapIn()", () => {
  it("finds two boxes that share an element", () => {
    const box = (offsets: number[], sizes: number[]): { offsets: number[]; sizes: number[] } => ({ offsets, sizes });
    const cases: readonly [boxes: ReturnType<typeof box>[], overlaps: boolean][] = [
      [[], false],
      [[box([], [])], false],
      [[box([], []), box([], [])], true],
      [[box([0], [4]), box([4], [4])], false],
      [[box([0], [5]), box([4], [4])], true],
      [[box([4], [4]), box([0], [0]), box([4], [0])], false],
      [[box([0, 0], [2, 8]), box([2, 0], [1, 3]), box([2, 3], [1, 5]), box([3, 0], [1, 8])], false],
      [[box([0, 0], [2, 8]), box([2, 0], [1, 4]), box([2, 3], [1, 5]), box([3, 0], [1, 8])], true],
      [[box([0, 0], [8, 2]), box([0, 4], [8, 2]), box([0, 2], [8, 2])], false],
      [[box([0, 0], [8, 2]), box([0, 4], [8, 2]), box([7, 3], [1, 2])], true],
    ];
    for (const [boxes, overlaps] of cases) {
      assert.equal(overlapIn(boxes) !== undefined, overlaps, JSON.stringify(boxes));
    }
  });
});
