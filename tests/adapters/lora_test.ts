/** The layers that get an adapter, and the settings that are refused. @module */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { addLora, type CausalLm, fullyShard, launch, type LoraOptions, mergeLora, openModel } from "../../mod.ts";
import { ArgumentError, CheckpointError, UnsupportedError } from "../../doors/errors.ts";
import { Embedding, initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { readAdapterConfig } from "../../src/adapters/config_file.ts";
import { loraOf } from "../../src/adapters/lora.ts";
import type { Tensor } from "../../mod.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
after(() => run[Symbol.asyncDispose]());
const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };

function llama(more: Readonly<Record<string, unknown>> = {}): Promise<CausalLm> {
  return openModel(run, { model_type: "llama", ...sizes, ...more });
}

async function layersOf(options: LoraOptions): Promise<readonly string[]> {
  const { layers } = addLora(await llama(), options);
  return [...layers.keys()].map((name) => name.replace("model.layers.", "").replace(/self_attn|mlp/, ""));
}

describe("addLora()", () => {
  it("chooses layers by ends of names, expressions, numbers and exclusions", async () => {
    assert.deepEqual(await layersOf({ targetModules: ["q_proj"] }), ["0..q_proj", "1..q_proj"]);
    assert.deepEqual(await layersOf({ targetModules: ".*1.*[vo]_proj" }), ["1..v_proj", "1..o_proj"]);
    assert.deepEqual(await layersOf({ targetModules: ["q_proj"], layersToTransform: 1 }), ["1..q_proj"]);
    assert.deepEqual(await layersOf({ targetModules: ["q_proj"], layersToTransform: [0], layersPattern: "layers" }), [
      "0..q_proj",
    ]);
    assert.deepEqual(await layersOf({ targetModules: ["q_proj"], excludeModules: ["0.self_attn.q_proj"] }), [
      "1..q_proj",
    ]);
    assert.equal((await layersOf({})).length, 14);
  });

  it("refuses what chooses nothing, with the nearest name, and what has no adapter", async () => {
    const refused: readonly (readonly [LoraOptions, new (message: string) => Error, RegExp])[] = [
      [
        { targetModules: ["q_prj"] },
        ArgumentError,
        /chosen by targetModules 'q_prj'; it has .*'q_proj'.* Did you mean 'q_proj'\?/,
      ],
      [{ targetModules: "q_proj" }, ArgumentError, /chosen by targetModules "q_proj"; it has/],
      [{ targetModules: "(q_proj" }, ArgumentError, /'\(q_proj' as targetModules: it must be a regular expression/],
      [
        { targetModules: ["norm"] },
        UnsupportedError,
        /Cannot add an adapter to 'model.norm', a LlamaRMSNorm: linear layers/,
      ],
      [
        { targetModules: ["lm_head"] },
        UnsupportedError,
        /Cannot add an adapter to 'lm_head'.*in full, by modulesToSave/,
      ],
      [{ modulesToSave: ["lm_hed"] }, ArgumentError, /Cannot train 'lm_hed' in full.* Did you mean 'lm_head'\?/],
      [{ r: 0 }, ArgumentError, /with r 0: it must be a positive integer/],
      [{ rankPattern: { q_proj: 1.5 } }, ArgumentError, /rankPattern of 'model.layers.0.self_attn.q_proj' 1.5/],
      [{ loraDropout: 2 }, ArgumentError, /p 2: it must be a probability/],
    ];
    for (const [options, kind, message] of refused) {
      const model = await llama();
      assert.throws(() => addLora(model, options), (error) => error instanceof kind && message.test(error.message));
      assert.equal(loraOf(model), undefined);
      assert.ok([...model.parameters()].every(({ requiresGrad }) => requiresGrad), "a refused adapter changes nothing");
    }
    const tied = await llama({ tie_word_embeddings: true });
    assert.throws(
      () => addLora(tied, { modulesToSave: ["lm_head"] }),
      /in full: it is tied to 'model.embed_tokens'/,
    );
    addLora(tied, { targetModules: ["embed_tokens"] });
    assert.throws(() => addLora(tied, {}), /the model has one; merge it by mergeLora/);
    await tied.load();
    assert.throws(() => mergeLora(tied), /its weight is tied to the head's/);
    const sharded = await llama();
    fullyShard(sharded, { mesh: run.mesh });
    assert.throws(() => addLora(sharded, {}), /is sharded already; call addLora before/);
  });

  it("adapts modules of one's own, and takes the adapter off", () => {
    class Own extends Module<[ids: Tensor], Tensor> {
      readonly table = new Embedding(run.device, 8, 4);
      readonly out = new Linear(run.device, 4, 2);
      forward(ids: Tensor): Tensor {
        return this.out.call(this.table.call(ids));
      }
    }
    const model = new Own();
    const before = [...model.namedParameters()].map(([name]) => name);
    const lora = addLora(model, { r: 2, targetModules: ["out", "table"] });
    initializeParameters(model, 0);
    const names = [...model.namedParameters()].filter(([, { requiresGrad }]) => requiresGrad).map(([name]) => name);
    assert.deepEqual(names, [
      "table.lora_embedding_A",
      "table.lora_embedding_B",
      "out.lora_A.weight",
      "out.lora_B.weight",
    ]);
    lora.remove();
    assert.deepEqual([...model.namedParameters()].map(([name]) => name), before);
  });
});

describe("an adapter's files", () => {
  const config = { peft_type: "LORA", r: 4, target_modules: ["q_proj"] };

  it("are refused by the key that is not implemented", () => {
    const refused: readonly (readonly [Record<string, unknown>, RegExp])[] = [
      [{ peft_type: "IA3" }, /its peft_type is 'IA3', and only 'LORA' is implemented/],
      [{ use_dora: true }, /use_dora true is not implemented/],
      [{ target_parameters: ["gate_up_proj"] }, /target_parameters \["gate_up_proj"\] is not implemented/],
      [{ bias: "all" }, /bias "all" is not implemented, only "none"/],
      [{ init_lora_weights: "pissa" }, /init_lora_weights "pissa" has changed the base model's weights/],
      [{ target_modules: null }, /it names no target_modules/],
    ];
    for (const [more, message] of refused) {
      assert.throws(() => readAdapterConfig({ ...config, ...more }, "a.json"), (error) => {
        return error instanceof UnsupportedError && message.test(error.message);
      });
    }
    assert.throws(() => readAdapterConfig({ ...config, r: "4" }, "a.json"), CheckpointError);
    assert.deepEqual(readAdapterConfig({ ...config, of_another: 1, use_dora: false }, "a.json").unknownKeys, [
      "of_another",
    ]);
  });

  it("that do not fit the settings are listed, and a pickle is not read", async () => {
    using folder = temporaryDirectory();
    folder.write("adapter_config.json", JSON.stringify(config));
    const model = await openModel(run, fixture("llama-untied"), { adapter: folder.path });
    folder.write("adapter_model.bin", "pickle");
    await assert.rejects(model.load(), /a Python pickle, which can run code; save the adapter as safetensors/);
    const other = await llama();
    addLora(other, { targetModules: ["k_proj"] });
    await other.load();
    await other.save(folder.path);
    folder.write("adapter_config.json", JSON.stringify(config));
    await assert.rejects(model.load(), (error) => {
      return error instanceof CheckpointError && /do not fit the adapter/.test(error.message) &&
        /missing: 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'/.test(error.message);
    });
  });
});
