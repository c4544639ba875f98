/**
 * GGUF files against those of llama.cpp's Python package (`tests/parity/make_gguf.py`): bytes of the format and of encodings, names,
 * shapes and values of tensors of each family, keys of tokenizers.
 *
 * @module
 */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { BF16, type Encoding, ENCODINGS, F16, F32, Q8_0 } from "../../src/checkpoint/gguf/encodings.ts";
import { exportGguf } from "../../src/checkpoint/gguf/export.ts";
import {
  bool,
  float32,
  type GgufTensorSpec,
  type GgufValue,
  string,
  uint32,
  writeGguf,
} from "../../src/checkpoint/gguf/format.ts";
import { noTokenizer, tokenizerKeys } from "../../src/checkpoint/gguf/tokenizer.ts";
import { readTokenizerFiles } from "../../src/checkpoint/gguf/tokenizer_files.ts";
import { writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32 as f32 } from "../../src/dtype.ts";
import { CheckpointError, NonFiniteError, UnsupportedError } from "../../src/errors.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { GGUF_FAMILIES, ggufPlan } from "../../src/models/gguf/families.ts";
import { buildModel } from "../../src/models/registry.ts";
import { numelOf, type Shape } from "../../src/shape.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const FIXTURES = fileURLToPath(new URL("../fixtures/gguf/", import.meta.url));

/** The output of `values` of the script. */
function values(count: number): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: count }, (_, i) => {
    if (i === 64) return 127;
    if (i >= 32 && i < 64) return 0;
    if (i >= 64 && i < 96) return i - 64 - 15.5;
    return ((i * 7919) % 2003 - 1001) * 2 ** (Math.floor(i / 32) % 23 - 15);
  });
}

describe("writeGguf()", () => {
  it("gives the bytes of the package's writer, for all types of values and encodings", () => {
    using folder = temporaryDirectory();
    const metadata = new Map<string, GgufValue>([
      ["general.architecture", string("llama")],
      ["a.uint32", uint32(4294967295)],
      ["a.float32", float32(0.1)],
      ["a.true", bool(true)],
      ["a.false", bool(false)],
      ["a.string", string("naïve 🚀\n")],
      ["a.strings", { type: "strings", value: ["", "Ġa", "▁b"] }],
      ["a.int32s", { type: "int32s", value: [1, -2, 3] }],
      ["a.float32s", { type: "float32s", value: [0.5, -1e-3] }],
    ]);
    const specs: readonly GgufTensorSpec[] = [
      { name: "one", shape: [3], encoding: F32 },
      { name: "two", shape: [5, 7], encoding: F16 },
      { name: "three", shape: [2, 3, 5], encoding: BF16 },
      { name: "four", shape: [4, 192], encoding: Q8_0 },
    ];
    const file = folder.file("own.gguf");
    const byteLength = writeGguf(file, metadata, specs, function* ({ name, shape, encoding }) {
      const all = values(numelOf(shape));
      // Two pieces, as a tensor is written in several.
      const middle = encoding.blockLength * Math.ceil(all.length / encoding.blockLength / 2);
      for (const piece of [all.subarray(0, middle), all.subarray(middle)]) yield encoding.encode(piece, name);
    });
    const written = fs.readFileSync(file);
    assert.equal(byteLength, written.length);
    assert.deepEqual(written, fs.readFileSync(`${FIXTURES}written.gguf`));
  });

  it("leaves what was there, and nothing beside it, where a tensor cannot be read", () => {
    using folder = temporaryDirectory();
    const file = folder.write("model.gguf", "before");
    const specs = [{ name: "one", shape: [4], encoding: F32 }];
    const fail = (): never => {
      throw new CheckpointError("shard", "it is damaged");
    };
    assert.throws(() => writeGguf(file, new Map(), specs, fail), /shard: it is damaged/);
    assert.throws(
      () => writeGguf(file, new Map(), specs, () => [new Uint8Array(12)]),
      /Tensor 'one' takes 16 bytes, got 12/,
    );
    assert.deepEqual([fs.readFileSync(file, "utf8"), fs.readdirSync(folder.path)], ["before", ["model.gguf"]]);
  });

  it("refuses values that an encoding cannot hold", () => {
    const encode = (encoding: Encoding, value: number) => () => encoding.encode(new Float32Array(32).fill(value), "w");
    assert.throws(encode(F16, 65520), NonFiniteError);
    assert.throws(encode(F16, -1e5), /'w' has -100000, which float16 cannot hold: use bfloat16 or float32 for it/);
    assert.doesNotThrow(encode(F16, 65519));
    assert.throws(encode(Q8_0, NaN), /'w' has NaN, which q8_0 cannot hold/);
    assert.throws(encode(Q8_0, 1e8), /'w' has 100000000, too large for the factor of q8_0/);
  });
});

/** The CRC-32 of a name. */
function crc32(text: string): number {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ ((crc & 1) === 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

/** Weights that follow from a tensor's name, as `weights` of the script gives them. */
function weights(name: string, shape: Shape): Float32Array<ArrayBuffer> {
  const start = crc32(name);
  return Float32Array.from({ length: numelOf(shape) }, (_, i) => ((i * 40503 + start) % 65536 - 32768) / 65536);
}

/** Writes a folder's weights under the names that Hugging Face's files have. */
async function writeWeights(folder: string, model: CausalLm): Promise<void> {
  const specs = [...model.directoryTensors()].map(({ name, shape }) => ({ name, shape, dtype: f32 }));
  await writeSafetensors(`${folder}/model.safetensors`, specs, {}, ({ name, shape }) => {
    return [new Uint8Array(weights(name, shape).buffer)];
  });
}

/** A tensor's encoding and bytes in a file. */
interface ReadTensor {
  readonly shape: readonly number[];
  readonly type: number;
  readonly bytes: Uint8Array;
}

/** Reads a file as ggml's specification says, with no code of the library. */
function readGguf(file: string): { metadata: Map<string, unknown>; tensors: Map<string, ReadTensor> } {
  const bytes = fs.readFileSync(file);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 4;
  const u32 = (): number => view.getUint32((at += 4) - 4, true);
  const u64 = (): number => Number(view.getBigUint64((at += 8) - 8, true));
  const text = (): string => {
    const length = u64();
    return bytes.subarray(at, at += length).toString("utf8");
  };
  const value = (type: number): unknown => {
    if (type === 4) return u32();
    if (type === 5) return view.getInt32((at += 4) - 4, true);
    if (type === 6) return view.getFloat32((at += 4) - 4, true);
    if (type === 7) return bytes[at++] === 1;
    if (type === 8) return text();
    assert.equal(type, 9);
    const inner = u32();
    return Array.from({ length: u64() }, () => value(inner));
  };
  assert.deepEqual([bytes.subarray(0, 4).toString(), u32()], ["GGUF", 3]);
  const [numTensors, numKeys] = [u64(), u64()];
  const metadata = new Map(Array.from({ length: numKeys }, () => {
    const key = text();
    return [key, value(u32())] as const;
  }));
  const infos = Array.from({ length: numTensors }, () => {
    const name = text();
    const shape = Array.from({ length: u32() }, u64).reverse();
    return { name, shape, type: u32(), offset: u64() };
  });
  const start = Math.ceil(at / 32) * 32;
  const lengths = new Map([[0, 4], [1, 2], [30, 2], [8, 34 / 32]]);
  const tensors = new Map(infos.map(({ name, shape, type, offset }) => {
    assert.equal(offset % 32, 0);
    const length = numelOf(shape) * (lengths.get(type) ?? NaN);
    return [name, { shape, type, bytes: bytes.subarray(start + offset, start + offset + length) }] as const;
  }));
  return { metadata, tensors };
}

describe("exportGguf()", () => {
  const families = [
    "llama",
    "llama-tied",
    "mistral",
    "mixtral",
    "qwen3",
    "qwen3_moe",
    "qwen2_moe",
    "phi3",
    "phi",
    "gpt2",
    "qwen2",
    "smollm3",
    "granite",
    "olmo2",
    "glm4",
    "gemma2",
    "gemma3_text",
  ];
  for (const family of families) {
    it(`writes names, shapes, keys and bytes of ${family} as the package does`, async () => {
      using folder = temporaryDirectory();
      const expected = JSON.parse(fs.readFileSync(`${FIXTURES}${family}.json`, "utf8"));
      const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
      const model = buildModel(device, expected.config);
      await writeWeights(folder.path, model);
      const to = folder.file("model.gguf");
      const plan = ggufPlan(model);
      const { metadata: tokenizer } = noTokenizer();
      await exportGguf({ from: folder.path, to, model, plan, encoding: ENCODINGS.q8_0, tokenizer });
      const { metadata, tensors } = readGguf(to);
      const own = [...metadata].filter(([key]) => key.startsWith(`${plan.architecture}.`));
      const rounded = Object.entries(expected.metadata).map(([key, value]) => {
        return [key, typeof value === "number" ? Math.fround(value) : value] as const;
      });
      assert.deepEqual(new Map(own), new Map(rounded));
      assert.deepEqual(
        [metadata.get("general.architecture"), metadata.get("general.file_type"), metadata.get("tokenizer.ggml.model")],
        [plan.architecture, 7, "none"],
      );
      const names = new Map([[0, "F32"], [8, "Q8_0"]]);
      const found = new Map([...tensors].map(([name, { shape, type, bytes }]) => {
        return [name, [names.get(type), shape, createHash("sha256").update(bytes).digest("hex")]] as const;
      }));
      assert.deepEqual(Object.fromEntries(found), { ...expected.tensors });
      device.dispose();
    });
  }

  it("refuses families and options that llama.cpp computes otherwise, naming what it takes", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
    const refuse = (name: string, changes: object, message: RegExp): void => {
      const { config } = JSON.parse(fs.readFileSync(`${FIXTURES}${name}.json`, "utf8"));
      const model = buildModel(device, { ...config, ...changes });
      assert.throws(() => ggufPlan(model), (error) => error instanceof UnsupportedError && message.test(error.message));
    };
    const zoo = fileURLToPath(new URL("../fixtures/zoo/olmo3.json", import.meta.url));
    const model = buildModel(device, JSON.parse(fs.readFileSync(zoo, "utf8")));
    assert.throws(
      () => ggufPlan(model),
      /model_type 'olmo3' into GGUF: 'llama', 'mistral', .* and 'qwen2_moe' are supported/,
    );
    assert.ok(GGUF_FAMILIES.length >= 15);
    refuse("llama", { hidden_act: "gelu" }, /hidden_act gelu into GGUF: llama.cpp's architecture 'llama' .* with silu/);
    refuse("qwen3_moe", { norm_topk_prob: false }, /norm_topk_prob false into GGUF/);
    refuse("qwen2_moe", { mlp_only_layers: [0] }, /layers without experts .* true into GGUF/);
    refuse("qwen3", { attention_bias: true }, /attention_bias true into GGUF/);
    refuse("smollm3", { no_rope_layers: [1, 1, 1, 1] }, /positions in other layers than three of four/);
    refuse("gemma3_text", { query_pre_attn_scalar: 8 }, /query_pre_attn_scalar that is not head_dim/);
    refuse("gemma3_text", { layer_types: Array(6).fill("full_attention") }, /other layers without a window/);
    refuse("gemma2", { final_logit_softcapping: null }, /without attn_logit_softcapping or final_logit_softcapping/);
    refuse("olmo2", { attention_bias: true }, /attention_bias true into GGUF/);
    refuse("gpt2", { scale_attn_by_inverse_layer_idx: true }, /other factors on attention scores/);
    const rope = { rope_type: "yarn", rope_theta: 10000, factor: 4, original_max_position_embeddings: 32, mscale: 0.5 };
    refuse("llama", { rope_parameters: rope }, /rope_type 'yarn' with attention_factor, mscale/);
    device.dispose();
  });

  it("says how long texts may be where the model has a sliding window", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
    const { config } = JSON.parse(fs.readFileSync(`${FIXTURES}mistral.json`, "utf8"));
    const { metadata, notes } = ggufPlan(buildModel(device, config));
    assert.deepEqual(metadata.get("llama.context_length"), uint32(48));
    assert.match(notes.join(), /context_length is 48, the sliding window, and not 128: llama.cpp has no windows/);
    device.dispose();
  });
});

describe("tokenizerKeys()", () => {
  const fixtures = JSON.parse(fs.readFileSync(`${FIXTURES}tokenizers.json`, "utf8"));
  const encode = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));
  const context = { eosIds: [], hfConfig: {}, pre: undefined };
  const read = (tokenizer: unknown, config: unknown, others: readonly (readonly [string, string])[] = []) => {
    const files = readTokenizerFiles(
      new Map([
        ["tokenizer.json", encode(tokenizer)],
        ["tokenizer_config.json", encode(config)],
        ...others.map(([name, text]) => [name, new TextEncoder().encode(text)] as const),
      ]),
      "folder",
    );
    assert.ok(files !== undefined);
    return files;
  };

  for (const name of ["llama-bpe", "smaug-bpe", "llama"]) {
    it(`gives what the package finds in a tokenizer of the kind ${name}`, () => {
      const { tokenizer, config, tokens, kinds, merges, ids, adds, template } = fixtures[name];
      const vocabSize = tokens.length + 2;
      const { metadata } = tokenizerKeys(read(tokenizer, config), { ...context, vocabSize });
      const key = (suffix: string): unknown => metadata.get(`tokenizer.ggml.${suffix}`)?.value;
      const isPiece = name === "llama";
      assert.deepEqual([key("model"), key("pre")], isPiece ? ["llama", "default"] : ["gpt2", name]);
      assert.deepEqual(key("tokens"), [...tokens, `[PAD${vocabSize - 2}]`, `[PAD${vocabSize - 1}]`]);
      assert.deepEqual(key("token_type"), [...kinds, 5, 5]);
      if (!isPiece) assert.deepEqual(key("merges"), merges);
      assert.deepEqual([key("bos_token_id"), key("eos_token_id")], [ids.bos, ids.eos]);
      assert.deepEqual([key("add_bos_token"), key("add_eos_token")], [adds.bos, false]);
      assert.equal(metadata.get("tokenizer.chat_template")?.value, template);
    });
  }

  it("orders tokens of SentencePiece by scores as merges are ordered", () => {
    const { tokenizer, config, tokens } = fixtures.llama;
    const { metadata } = tokenizerKeys(read(tokenizer, config), { ...context, vocabSize: tokens.length });
    const found = metadata.get("tokenizer.ggml.scores");
    assert.ok(found?.type === "float32s");
    const scoreOf = (token: string): number => found.value[tokens.indexOf(token)] ?? NaN;
    const order = ["▁t", "he", "▁the", "sh", "ar", "▁s", "▁sh", "shar", "▁shar"];
    assert.deepEqual([...order].sort((a, b) => scoreOf(b) - scoreOf(a)), order);
    assert.equal(metadata.get("tokenizer.ggml.add_space_prefix")?.value, true);
    const spaced = (scheme: string) => {
      const step = { type: "Metaspace", replacement: "▁", prepend_scheme: scheme, split: false };
      const changed = { ...tokenizer, normalizer: null, pre_tokenizer: step };
      const keys = tokenizerKeys(read(changed, config), { ...context, vocabSize: tokens.length });
      return [keys.metadata.get("tokenizer.ggml.add_space_prefix")?.value, keys.notes.join()];
    };
    assert.deepEqual(spaced("never"), [false, ""]);
    const note = "the tokenizer puts no space before a text that begins with one, and llama.cpp does";
    assert.deepEqual(spaced("always"), [true, note]);
    assert.match(String(spaced("first")[1]), /nor after a special token, and llama\.cpp does/);
  });

  it("takes the file of the chat template, further templates, and all ids that end texts", () => {
    const { tokenizer, config, tokens } = fixtures["llama-bpe"];
    const others = [["chat_template.jinja", "file"], ["additional_chat_templates/tools.jinja", "tools"]] as const;
    const { metadata } = tokenizerKeys(read(tokenizer, config, others), {
      ...context,
      vocabSize: tokens.length,
      eosIds: [1, 2],
    });
    const value = (key: string): unknown => metadata.get(key)?.value;
    assert.deepEqual(
      [value("tokenizer.chat_template"), value("tokenizer.chat_template.tools"), value("tokenizer.chat_templates")],
      ["file", "tools", ["tools"]],
    );
    assert.deepEqual([value("tokenizer.ggml.eos_token_id"), value("tokenizer.ggml.eot_token_id")], [1, 2]);
  });

  it("refuses tokenizers that llama.cpp does not have, and takes a name for one that is not known", () => {
    const { tokenizer, config, tokens } = fixtures["llama-bpe"];
    const vocabSize = tokens.length;
    const keys = (changes: object, more: object = {}) =>
      tokenizerKeys(read({ ...tokenizer, ...changes }, config), { ...context, vocabSize, ...more });
    const split = { type: "Split", pattern: { Regex: "\\w+" }, behavior: "Isolated", invert: false };
    const odd = {
      pre_tokenizer: {
        type: "Sequence",
        pretokenizers: [split, { type: "ByteLevel", add_prefix_space: false, use_regex: false }],
      },
    };
    assert.throws(() => keys(odd), /Cannot tell which of llama.cpp's pre-tokenizers .*\\\\w\+.* --pre NAME/);
    assert.equal(keys(odd, { pre: "deepseek-llm" }).metadata.get("tokenizer.ggml.pre")?.value, "deepseek-llm");
    const [start, ...others] = tokenizer.added_tokens;
    const { notes } = keys({ added_tokens: [{ ...start, rstrip: true }, ...others] });
    assert.deepEqual(notes, [
      "llama.cpp does not take blanks around tokens along, nor look for whole words, as these do: '<|begin|>'",
    ]);
    assert.throws(() => keys({ normalizer: { type: "Lowercase" } }), /normalizer \{"type":"Lowercase"\}/);
    assert.throws(() => keys({}, { vocabSize: vocabSize - 1 }), /Token '.*' has id \d+, and the model has \d+/);
    assert.throws(() => keys({ model: { type: "Unigram", vocab: [] } }), /its model is Unigram, and only BPE/);
    assert.throws(
      () => keys({}, { eosIds: [1, 2, 3, 4] }),
      /Cannot write 4 ids that end texts \(eos_token_id 1, 2, 3, 4\)/,
    );
    const piece = fixtures.llama;
    const reordered = {
      ...piece.tokenizer,
      model: { ...piece.tokenizer.model, merges: piece.tokenizer.model.merges.slice(1) },
    };
    assert.throws(
      () => tokenizerKeys(read(reordered, piece.config), { ...context, vocabSize: piece.tokens.length }),
      /llama.cpp's tokenizer 'llama' works as SentencePiece's .*are tokens, and so is '.*', but they are no merge/,
    );
  });
});
