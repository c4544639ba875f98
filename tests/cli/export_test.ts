/** `fullyshard export`: models as GGUF files and as folders in other dtypes. @module */
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
const FIXTURES = fileURLToPath(new URL("../fixtures/gguf/", import.meta.url));
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const llama = { ...TINY_LLAMA, vocab_size: 320, hidden_size: 32 };
const [sharded, hf] = [folder.file("sharded"), folder.file("hf")];
const checkpoint = `${sharded}/checkpoint-7`;
const { "llama-bpe": { tokenizer, config } } = JSON.parse(fs.readFileSync(`${FIXTURES}tokenizers.json`, "utf8"));

function run(...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync("node", [bin, "--runtime", RUNTIME, ...args], { encoding: "utf8" });
  return { code: status, stdout, stderr };
}

before(async () => {
  const common = { seed: 4, step: 7, llama, world: 2 };
  const outcomes = await runRanks([
    { ...common, do: "save", directory: sharded },
    { ...common, do: "save-hf", directory: hf },
  ]);
  for (const { error } of outcomes.flat()) assert.equal(error, "");
  fs.writeFileSync(`${hf}/tokenizer.json`, JSON.stringify(tokenizer));
  fs.writeFileSync(`${hf}/tokenizer_config.json`, JSON.stringify(config));
});

describe("fullyshard export", () => {
  it("writes the same file of a folder and of a sharded checkpoint", () => {
    const [one, other] = [folder.file("one.gguf"), folder.file("other.gguf")];
    const first = run("export", hf, "--out", one, "--dtype", "q8_0");
    assert.equal(first.code, 0, first.stderr);
    assert.match(first.stdout, /^Wrote 11 tensors, .* KiB, of architecture 'llama' as Q8_0 to '.*one\.gguf'\n/);
    // Rows of 24 elements.
    assert.match(
      first.stdout,
      /Note: written as F16, as their rows are no multiples of 32 elements: blk\.0\.ffn_down\.weight\n/,
    );
    const second = run("export", checkpoint, "--out", other, "--dtype", "q8_0", "--tokenizer", hf);
    assert.equal(second.code, 0, second.stderr);
    assert.deepEqual(fs.readFileSync(other), fs.readFileSync(one));
  });

  longTest("refuses what it cannot write, and leaves what was there", () => {
    const out = folder.write("there/model.gguf", "before");
    const refused = (message: RegExp, ...args: readonly string[]): void => {
      const { code, stderr } = run("export", ...args);
      assert.equal(code, 2, stderr);
      assert.match(stderr, message);
    };
    refused(/out: expected a file that is not there, or --overwrite to replace it, got '/, hf, "--out", out);
    refused(
      /tokenizer: expected a folder with tokenizer\.json, or --tokenizer none .*, got '.*', which has none/,
      checkpoint,
      "--out",
      out,
      "--overwrite",
    );
    refused(/out: expected the file to write, got nothing/, hf);
    const adapter = folder.write(
      "adapter/adapter_config.json",
      '{"peft_type": "LORA", "base_model_name_or_path": "a"}',
    );
    refused(
      /It is a PEFT adapter \(LORA\) of 'a' and not a model: .* 'fullyshard merge BASE FOLDER --adapter THIS'/,
      adapter.slice(0, adapter.lastIndexOf("/")),
      ...["--out", out, "--overwrite"],
    );
    refused(/arguments: expected <model>, got nothing/);
    refused(
      /dtype: expected f32, f16, bf16, got q8_0, of GGUF alone/,
      hf,
      "--out",
      out,
      "--format",
      "hf",
      "--dtype",
      "q8_0",
    );
    refused(
      /tokenizer: expected --format gguf to be set too, got .* without it; set --format gguf, or remove tokenizer/,
      hf,
      "--out",
      out,
      "--format",
      "hf",
      "--tokenizer",
      hf,
    );
    refused(/Did you mean '--tokenizer'/, hf, "--out", out, "--tokeniser", hf);
    const modern = fileURLToPath(new URL("../fixtures/zoo/lfm2.json", import.meta.url));
    refused(
      /model_type 'lfm2' into GGUF: 'llama', .* are supported/,
      hf,
      "--out",
      out,
      "--overwrite",
      "--model-config",
      modern,
    );
    const damaged = folder.file("damaged");
    fs.cpSync(checkpoint, damaged, { recursive: true });
    const shard = fs.readdirSync(damaged).find((name) => name.startsWith("shard-"));
    const bytes = fs.readFileSync(`${damaged}/${shard}`);
    bytes[bytes.length - 1] = (bytes[bytes.length - 1] ?? 0) ^ 1;
    fs.writeFileSync(`${damaged}/${shard}`, bytes);
    refused(/shard-.* should have checksum/, damaged, "--out", out, "--overwrite", "--tokenizer", hf);
    assert.deepEqual([fs.readFileSync(out, "utf8"), fs.readdirSync(folder.file("there"))], ["before", ["model.gguf"]]);
  });

  it("removes what an export that was killed left behind", () => {
    const out = folder.file("killed/model.gguf");
    const [left, other] = [".model.gguf.123.partial", ".model.gguf.mine.partial"];
    for (const name of [left, other]) folder.write(`killed/${name}`, "partial");
    const { code, stderr } = run("export", hf, "--out", out, "--tokenizer", "none");
    assert.equal(code, 0, stderr);
    assert.deepEqual(fs.readdirSync(folder.file("killed")).sort(), [other, "model.gguf"].sort());
  });

  longTest("writes folders in each dtype, of folders too", () => {
    for (
      const [dtype, name, size] of [["f32", "float32", 4], ["bf16", "bfloat16", 2], ["f16", "float16", 2]] as const
    ) {
      const to = folder.file(`as-${dtype}`);
      const { code, stdout, stderr } = run("export", hf, "--format", "hf", "--out", to, "--dtype", dtype);
      assert.equal(code, 0, stderr);
      assert.match(stdout, new RegExp(`of weights as ${name} to '`));
      const saved = JSON.parse(fs.readFileSync(`${to}/config.json`, "utf8"));
      assert.equal(saved.dtype ?? saved.torch_dtype, name);
      assert.ok(fs.existsSync(`${to}/tokenizer.json`));
      const facts = JSON.parse(run("diff", to, hf, "--json").stdout);
      const kinds = new Set(facts.differences.map(({ kind }: { kind: string }) => kind));
      assert.deepEqual([...kinds], size === 4 ? [] : ["values"]);
      const bytes = fs.statSync(`${to}/model.safetensors`).size;
      assert.ok(Math.abs(bytes / fs.statSync(`${hf}/model.safetensors`).size - size / 4) < 0.05);
    }
    assert.match(
      run("export", hf, "--format", "hf", "--out", folder.file("as-f32")).stderr,
      /out: expected a folder without weights, or --overwrite/,
    );
  });

  it("explains itself", () => {
    const { code, stdout } = run("export", "--help");
    assert.equal(code, 0);
    assert.match(stdout, /fullyshard export <model> --out <file> \[flags\]/);
  });
});
