/** Small files beside a model's weights, through runs: what comes in goes out. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as path from "node:path";
import { spawnSync } from "node:child_process";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, flagsIn } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 90_000 };
const TOKENIZER = fileURLToPath(new URL("../../examples/data/tokenizer.json", import.meta.url));
const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

/** Files that every save must have, besides the tokenizer's. */
const SMALL: Readonly<Record<string, string>> = {
  "chat_template.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}",
  "chat_templates/tool.jinja": "{{ tools }}",
  "generation_config.json": '{"eos_token_id": [0, 1],   "temperature": 0.6, "pad_token_id": 1}',
  "special_tokens_map.json": '{"eos_token": "x"}',
  "modeling_mine.py": "class Mine: pass\n",
  "LICENSE": "free",
  "preprocessor_config.json": "{}",
};
const OTHERS = ["optimizer.pt", "pytorch_model.bin", "model-00001-of-00002.safetensors", "consolidated.safetensors"];

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

/** A model's folder as Hugging Face's cache has it: links to blobs. */
async function makeSnapshot(folder: TemporaryDirectory): Promise<string> {
  succeeds(await run(flagsIn(folder, "--steps", "1", "--out", folder.file("first")), { ranks: 1 }));
  const config = JSON.parse(fs.readFileSync(folder.file("first/model/config.json"), "utf8"));
  const changed = { ...config, architectures: undefined, mystery: { deep: [1, 2] }, rope_parameters: undefined };
  folder.write("first/model/config.json", JSON.stringify(changed));
  for (const [name, text] of Object.entries(SMALL)) folder.write(`first/model/${name}`, text);
  for (const name of OTHERS) folder.write(`first/model/${name}`, "other");
  folder.write("first/model/.gitattributes", "hidden");
  folder.write(
    "first/model/spiece.model",
    `version https://git-lfs.github.com/spec/v1\noid sha256:${"0".repeat(64)}\nsize 9\n`,
  );
  folder.write("first/model/checkpoint-500/trainer_state.json", "{}");
  const snapshot = folder.file("snapshot");
  for (const name of fs.readdirSync(folder.file("first/model"), { recursive: true, encoding: "utf8" })) {
    const from = folder.file(`first/model/${name}`);
    if (fs.statSync(from).isDirectory()) continue;
    fs.mkdirSync(path.dirname(`${snapshot}/${name}`), { recursive: true });
    fs.symlinkSync(from, `${snapshot}/${name}`);
  }
  return snapshot;
}

/** Asserts that a folder has the small files of another, byte for byte. */
function requireKept(folder: string, from: string, but: readonly string[] = []): void {
  for (const name of [...Object.keys(SMALL), "tokenizer.json", "tokenizer_config.json"]) {
    if (but.includes(name)) continue;
    assert.ok(fs.existsSync(`${folder}/${name}`), `${folder} lost ${name}`);
    assert.equal(fs.readFileSync(`${folder}/${name}`, "utf8"), fs.readFileSync(`${from}/${name}`, "utf8"), name);
  }
  for (const name of [...OTHERS, ".gitattributes", "spiece.model", "checkpoint-500"]) {
    assert.ok(!fs.existsSync(`${folder}/${name}`), `${folder} has ${name}`);
  }
  const config = JSON.parse(fs.readFileSync(`${folder}/config.json`, "utf8"));
  assert.deepEqual([config.architectures, config.mystery, config.dtype], [
    ["LlamaForCausalLM"],
    { deep: [1, 2] },
    "float32",
  ]);
}

test(
  "a run keeps what lies beside the weights: in its checkpoints, their models, and the last one",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const snapshot = await makeSnapshot(folder);
    const flags = (out: string, ...more: readonly string[]): string[] =>
      flagsIn(folder, "--model", snapshot, "--out", folder.file(out), ...more);
    const full = succeeds(await run(flags("full", "--steps", "2", "--save-every", "1", "--state-dict-type", "full")));
    for (const made of ["model", "checkpoint-1", "checkpoint-1/model", "checkpoint-2"]) {
      requireKept(folder.file(`full/${made}`), snapshot);
    }
    const [line = "", ...again] = full.stderr.split("\n").filter((text) => text.includes("Left unused in"));
    assert.deepEqual(again, [], "said once");
    for (
      const said of [
        "optimizer.pt (training state)",
        "pytorch_model.bin (weights)",
        "spiece.model (a pointer of Git LFS",
      ]
    ) {
      assert.ok(line.includes(said), line);
    }
    assert.ok(!line.includes("model.safetensors ("), line);

    const saved = flags(
      "later",
      "--steps",
      "3",
      "--save-every",
      "1",
      "--async-save",
      "--keep-last",
      "2",
      "--stop-after",
      "2",
    );
    succeeds(await run(saved));
    requireKept(folder.file("later/checkpoint-1"), snapshot);
    // The host that goes on has the checkpoint alone, and newer ones replace it.
    const copy = folder.file("copy");
    fs.cpSync(folder.file("full/checkpoint-1"), copy, { recursive: true });
    fs.cpSync(snapshot, folder.file("kept"), { recursive: true, dereference: true });
    fs.rmSync(snapshot, { recursive: true });
    const from = folder.file("later/checkpoint-1");
    const last = folder.file("later/checkpoint-2");
    const resumed = [...saved.slice(0, -4), "--keep-last", "1", "--model", from, "--resume", last];
    succeeds(await run(resumed, { ranks: 1 }));
    assert.deepEqual([from, last].map((path) => fs.existsSync(path)), [false, true]);
    for (const made of ["model", "checkpoint-3"]) requireKept(folder.file(`later/${made}`), folder.file("kept"));

    for (const [command, made] of [[["merge"], "merged"], [["reshard", "--nproc", "3"], "cut"]] as const) {
      const args = [bin, "--runtime", RUNTIME, ...command, folder.file("later/checkpoint-3"), folder.file(made)];
      const { status, stderr } = spawnSync("node", args, { encoding: "utf8" });
      assert.equal(status, 0, stderr);
      requireKept(folder.file(made), folder.file("kept"));
    }
  },
);

test("a run with another tokenizer keeps all but the files of the first one, and its ids", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const snapshot = await makeSnapshot(folder);
  const flags = flagsIn(folder, "--model", snapshot, "--tokenizer", TOKENIZER, "--steps", "1", "--save-every", "1");
  succeeds(await run(flags, { ranks: 1 }));
  for (const made of ["model", "checkpoint-1"]) {
    const at = folder.file(`out/${made}`);
    const replaced = [
      "chat_template.jinja",
      "chat_templates/tool.jinja",
      "special_tokens_map.json",
      "generation_config.json",
    ];
    requireKept(at, snapshot, replaced);
    for (const name of replaced.slice(0, 3)) assert.ok(!fs.existsSync(`${at}/${name}`), `${at} has ${name}`);
    const settings = JSON.parse(fs.readFileSync(`${at}/generation_config.json`, "utf8"));
    const { eos_token_id: eos } = JSON.parse(fs.readFileSync(`${at}/config.json`, "utf8"));
    assert.deepEqual(settings, { temperature: 0.6, eos_token_id: eos });
    assert.equal(typeof eos, "number");
  }
});
