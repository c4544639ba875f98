/** Files in the place of other ones, adapters, and checkpoints of other programs: each is refused in one sentence. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { describe, it } from "node:test";
import { gzipSync } from "node:zlib";
import { loadCheckpoint } from "../../doors/checkpoint.ts";
import { loadTokenizer } from "../../doors/data.ts";
import { launch, openModel } from "../../mod.ts";
import { mergeCheckpoint } from "../../src/checkpoint/offline/merge.ts";
import { openStored } from "../../src/checkpoint/offline/stored.ts";
import { Logger } from "../../src/runtime/log.ts";
import { fixturePath } from "../support/golden.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const POINTER = `version https://git-lfs.github.com/spec/v1\noid sha256:${"0".repeat(64)}\nsize 4976698672\n`;

/** Contents that lie in the place of a file, and the error for each. */
const FOREIGN: readonly (readonly [name: string, contents: string | Uint8Array, said: RegExp])[] = [
  [
    "pointer",
    POINTER,
    /a pointer of Git LFS, of a file of 4976698672 bytes that is not here: run 'git lfs pull' in its/,
  ],
  [
    "page",
    "\n<!DOCTYPE html><html>sign in</html>",
    /an HTML or XML page, such as a server sends that refuses: download/,
  ],
  ["xml", '<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', /an HTML or XML page/],
  ["refusal", '{"error":"Repository not found"}', /a server's refusal "Repository not found": download the file again/],
  ["not found", "Entry not found", /a server's refusal "Entry not found"/],
  ["gzip", new Uint8Array(gzipSync("{}")), /gzip data: unpack it by 'gunzip'/],
  ["zip", Uint8Array.of(0x50, 0x4b, 3, 4, ...new Array(60).fill(7)), /a zip archive, such as torch\.save writes/],
  ["blank", " \n \n        ", /blank: download the file again/],
  ["zeros", new Uint8Array(4096), /zeros only: download the file again/],
];

function copyOf(fixture: string, folder: TemporaryDirectory, name: string): string {
  const path = folder.file(name);
  fs.cpSync(fixturePath(fixture), path, { recursive: true });
  return path;
}

/** The message of a rejection, which must be one sentence of one line. */
async function refusal(action: () => Promise<unknown>): Promise<string> {
  try {
    await action();
  } catch (error) {
    assert.ok(
      error instanceof Error && /^(CheckpointError|FileError|UnsupportedError)$/.test(error.name),
      String(error),
    );
    assert.ok(!error.message.includes("\n"), error.message);
    return error.message;
  }
  assert.fail("no error");
}

describe("a file in another one's place", () => {
  for (const [name, contents, said] of FOREIGN) {
    it(`is named with its path and what helps: ${name}`, async () => {
      using folder = temporaryDirectory();
      await using run = await launch();
      const load = (path: string) => async (): Promise<void> => await (await openModel(run, path)).load();
      const model = copyOf("llama-odd", folder, "model");
      const index = { weight_map: { a: "model-00001-of-00001.safetensors" } };
      const original = new Map(
        ["config.json", "model.safetensors"].map((file) => [file, fs.readFileSync(`${model}/${file}`)]),
      );
      for (const file of original.keys()) {
        fs.writeFileSync(`${model}/${file}`, contents);
        const message = await refusal(load(model));
        assert.match(message, said);
        assert.ok(message.includes(`${model}/${file}`), message);
        fs.writeFileSync(`${model}/${file}`, original.get(file) ?? "");
      }
      fs.rmSync(`${model}/model.safetensors`);
      fs.writeFileSync(`${model}/model.safetensors.index.json`, contents);
      assert.match(await refusal(load(model)), said);
      fs.writeFileSync(`${model}/model.safetensors.index.json`, JSON.stringify(index));
      fs.writeFileSync(`${model}/model-00001-of-00001.safetensors`, contents);
      assert.match(await refusal(load(model)), said);
      folder.write("t/tokenizer.json", contents);
      assert.match(await refusal(() => loadTokenizer(folder.file("t"))), said);
      folder.write("t/tokenizer.json", fs.readFileSync("examples/data/tokenizer.json"));
      folder.write("t/tokenizer_config.json", contents);
      assert.match(await refusal(() => loadTokenizer(folder.file("t"))), said);
    });
  }

  it("is refused when it is a named pipe, at once", async () => {
    using folder = temporaryDirectory();
    await using run = await launch();
    for (const file of ["config.json", "model.safetensors", "model.safetensors.index.json"]) {
      const model = copyOf("llama-odd", folder, file);
      fs.rmSync(`${model}/model.safetensors`);
      fs.rmSync(`${model}/${file}`, { force: true });
      assert.equal(spawnSync("mkfifo", [`${model}/${file}`]).status, 0);
      const message = await refusal(async () => await (await openModel(run, model)).load());
      assert.match(message, /it is a named pipe \(FIFO\), not a regular file/);
      assert.ok(message.includes(`${model}/${file}`));
      if (file !== "config.json") assert.match(await refusal(() => openStored(model)), /a named pipe/);
    }
    const beside = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"];
    for (const file of ["tokenizer.json", ...beside]) {
      const tokenizer = folder.file(`beside ${file}`);
      fs.cpSync("examples/data/tokenizer.json", `${tokenizer}/tokenizer.json`);
      fs.rmSync(`${tokenizer}/${file}`, { force: true });
      assert.equal(spawnSync("mkfifo", [`${tokenizer}/${file}`]).status, 0);
      const message = await refusal(() => loadTokenizer(tokenizer));
      assert.ok(message.includes(`${tokenizer}/${file}': it is a named pipe (FIFO), not a regular file`), message);
    }
    const model = copyOf("llama-odd", folder, "generation");
    fs.rmSync(`${model}/generation_config.json`, { force: true });
    assert.equal(spawnSync("mkfifo", [`${model}/generation_config.json`]).status, 0);
    assert.match(await refusal(() => openModel(run, model)), /generation_config\.json': it is a named pipe/);
  });
});

describe("an adapter", () => {
  const config = JSON.stringify({ base_model_name_or_path: "org/base", peft_type: "LORA", r: 4 });

  it("is refused beside weights and alone, with its base and what helps", async () => {
    using folder = temporaryDirectory();
    await using run = await launch();
    for (const file of ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]) {
      const model = copyOf("llama-odd", folder, `beside-${file}`);
      fs.writeFileSync(`${model}/${file}`, file.endsWith(".json") ? config : "weights");
      const message = await refusal(() => openModel(run, model));
      assert.match(
        message,
        /A PEFT adapter.* lies beside model\.safetensors: give the folder as the adapter too \('--adapter'/,
      );
      assert.ok(message.includes(`or move ${file} to another folder to use the weights without it`), message);
      if (file === "adapter_config.json") assert.match(message, /adapter \(LORA\) of 'org\/base'/);
      const plain = await openModel(run, fixturePath("llama-odd"));
      assert.match(await refusal(() => mergeCheckpoint(model, folder.file("merged"), plain)), /A PEFT adapter/);
    }
    folder.write("alone/adapter_config.json", config);
    folder.write("alone/adapter_model.safetensors", "weights");
    const alone = folder.file("alone");
    const opened = [
      () => openModel(run, alone),
      () => openModel(run, alone, { adapter: alone }),
      () => openStored(alone),
    ];
    for (const act of opened) {
      assert.match(
        await refusal(act),
        /alone: It is a PEFT adapter \(LORA\) of 'org\/base' and not a model: give the folder of the base model, and this one as its adapter \('--adapter'/,
      );
    }
  });

  it("in a sub-folder, and weights that are not used, are told in one line", async () => {
    using folder = temporaryDirectory();
    await using run = await launch();
    const model = copyOf("llama-odd", folder, "model");
    fs.rmSync(`${model}/expected.safetensors`, { force: true });
    folder.write("model/lora/adapter_config.json", config);
    for (const file of ["pytorch_model.bin", "consolidated.safetensors", "model.safetensors.index.json"]) {
      folder.write(`model/${file}`, "{}");
    }
    const lines: string[] = [];
    const log = new Logger({ sink: ({ message }) => lines.push(message) });
    await (await openModel(run, model, { log })).load();
    assert.deepEqual(lines, [
      `Left unused in '${model}', and out of what is saved: consolidated.safetensors (weights), lora/ (with an adapter), ` +
      "model.safetensors.index.json (an index of weights), pytorch_model.bin (weights)",
    ]);
  });
});

describe("a checkpoint of another program", () => {
  const trainer = ["optimizer.pt", "scheduler.pt", "training_args.bin", "trainer_state.json", "rng_state.pth"];
  const kinds: readonly (readonly [name: string, files: readonly string[], what: RegExp])[] = [
    [
      "DeepSpeed",
      ["latest", "zero_to_fp32.py", "global_step10/mp_rank_00_model_states.pt"],
      /got one of DeepSpeed: write/,
    ],
    [
      "Megatron",
      ["latest_checkpointed_iteration.txt", "iter_0000010/mp_rank_00/model_optim_rng.pt"],
      /one of Megatron: w/,
    ],
    [
      "Accelerate",
      ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata"],
      /of FSDP: .*'accelerate merge-weights'/,
    ],
    ["DCP", [".metadata", "__0_0.distcp"], /one of PyTorch's distributed checkpoint: .*dcp_to_torch/],
    ["Lightning", ["epoch=1.ckpt"], /one of Lightning: write a Hugging Face folder of it from the state_dict/],
    ["torch", ["model.pt"], /pickled weights: write a Hugging Face folder of it by save_pretrained/],
    [
      "Trainer with bin",
      [...trainer, "pytorch_model.bin"],
      /one of Transformers' Trainer: write a Hugging Face folder/,
    ],
  ];

  for (const [name, files, what] of kinds) {
    it(`is named, by a resume and as a model: ${name}`, async () => {
      using folder = temporaryDirectory();
      for (const file of files) folder.write(`other/${file}`, "x");
      await using run = await launch();
      const model = await openModel(run, fixturePath("llama-odd"));
      await model.load();
      const from = folder.file("other");
      const resume = (): Promise<unknown> => loadCheckpoint({ directory: folder.path, from, model, group: run.group });
      assert.match(await refusal(resume), what);
      assert.match(
        await refusal(resume),
        /and begin from that with '--model'; the states of its optimizer are not read$/,
      );
      assert.match(
        await refusal(() => openModel(run, from)),
        /not a model's folder; write a Hugging Face folder of it /,
      );
    });
  }

  it("that is a Hugging Face folder is to be given as --model, also where it has a checkpoint's name", async () => {
    using folder = temporaryDirectory();
    await using run = await launch();
    const from = copyOf("llama-odd", folder, "checkpoint-500");
    for (const file of trainer) folder.write(`checkpoint-500/${file}`, "{}");
    const model = await openModel(run, from, { log: new Logger({ sink: () => {} }) });
    await model.load();
    const said =
      `got one of Transformers' Trainer: begin from its weights with '--model ${from}' and without '--resume'`;
    for (const wanted of [from, "auto"]) {
      const load = (): Promise<unknown> =>
        loadCheckpoint({ directory: folder.path, from: wanted, model, group: run.group });
      assert.ok((await refusal(load)).includes(said), await refusal(load));
    }
  });

  it("of one file is named as a resume and as a model", async () => {
    using folder = temporaryDirectory();
    await using run = await launch();
    const model = await openModel(run, fixturePath("llama-odd"));
    await model.load();
    for (
      const [name, what] of [["a.ckpt", /Lightning or of torch\.save/], ["b.pt", /torch\.save/], [
        "c.gguf",
        /GGUF/,
      ]] as const
    ) {
      const from = folder.write(name, "x");
      const resume = (): Promise<unknown> => loadCheckpoint({ directory: folder.path, from, model, group: run.group });
      assert.match(await refusal(resume), what);
      assert.match(await refusal(() => openModel(run, from)), what);
    }
    const weights = fixturePath("llama-odd/model.safetensors");
    assert.match(
      await refusal(() => openModel(run, weights)),
      /it is a file of weights .*give the folder that it lies in$/,
    );
  });
});
