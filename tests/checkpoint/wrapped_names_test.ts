/** Weights whose names a wrapper has changed are refused in one sentence, and long lists are short. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import { describe, it } from "node:test";
import { launch, openModel } from "../../mod.ts";
import { openSafetensors, writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { Logger } from "../../src/runtime/log.ts";
import { fixturePath } from "../support/golden.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** The fixture's weights under other names; those without one are left out. */
async function refusalOf(nameOf: (name: string) => string | undefined, fixture = "llama-untied"): Promise<string> {
  using folder = temporaryDirectory();
  const model = folder.file("m");
  fs.mkdirSync(model);
  fs.copyFileSync(fixturePath(`${fixture}/config.json`), `${model}/config.json`);
  using source = await openSafetensors(fixturePath(`${fixture}/model.safetensors`));
  const names = new Map(source.entries.map(({ name }) => [nameOf(name) ?? "", name]));
  names.delete("");
  const specs = [...names].map(([name, old]) => ({ name, dtype: source.get(old).code, shape: source.get(old).shape }));
  await writeSafetensors(`${model}/model.safetensors`, specs, {}, ({ name }) => {
    const old = names.get(name) ?? assert.fail();
    return source.pieces(old, 0, source.get(old).byteLength);
  });
  await using run = await launch();
  const log = new Logger({ sink: () => {} });
  try {
    await (await openModel(run, model, { log })).load();
  } catch (error) {
    assert.ok(error instanceof Error && error.name === "CheckpointError", String(error));
    return error.message;
  }
  return "";
}

const inLayers = (name: string, field: string): string => name.replace(/(layers\.\d+\.)/, `$1${field}.`);

const WRAPPED: readonly (readonly [what: string, nameOf: (name: string) => string, said: RegExp])[] = [
  ["torch.compile", (name) => `_orig_mod.${name}`, /the prefix '_orig_mod\.' of torch\.compile, in \d+ tensors\. Save/],
  ["DDP", (name) => `module.${name}`, /the prefix 'module\.' of DistributedDataParallel or DeepSpeed, in/],
  [
    "FSDP",
    (name) => inLayers(`_fsdp_wrapped_module.${name}`, "_fsdp_wrapped_module"),
    /'_fsdp_wrapped_module\.' of PyTorch/,
  ],
  [
    "checkpointing",
    (name) => inLayers(name, "_checkpoint_wrapped_module"),
    /'_checkpoint_wrapped_module\.' of activation/,
  ],
  ["two", (name) => `module._orig_mod.${name}`, /'_orig_mod\.' of torch\.compile and 'module\.' of Distributed/],
  ["PEFT", (name) => `base_model.model.${name}`, /the prefix 'base_model\.model\.' of PEFT, in/],
  ["a field", (name) => `model.${name}`, /the prefix 'model\.' of a wrapper, in/],
  [
    "PEFT, compiled",
    (name) => `_orig_mod.base_model.model.${name}`,
    /'_orig_mod\.' of torch\.compile and 'base_model\.model\.' of/,
  ],
  [
    "a body of another name",
    (name) => name.replace(/^model\./, "transformer."),
    /'transformer\.' in place of 'model\.'/,
  ],
];

describe("loadHfWeights() says in one sentence that names have a prefix of", () => {
  for (const [what, nameOf, said] of WRAPPED) {
    it(what, async () => {
      const message = await refusalOf(nameOf);
      assert.match(message, said);
      assert.match(message, /Names must be as '[\w.]+', got '[\w.]+'/);
      assert.ok(!message.includes("\n") && message.length < 500, message);
    });
  }

  it("PEFT, with the adapter apart", async () => {
    const message = await refusalOf((name) => {
      return `base_model.model.${name.replace(/q_proj\.weight/, "q_proj.lora_A.default.weight")}`;
    });
    assert.match(
      message,
      /got '[\w.]+lora_A[\w.]*' of a PEFT model whose adapter is apart: merge it by merge_and_unload/,
    );
  });
});

describe("loadHfWeights() lists names", () => {
  it("of which a layer is missing and another one is there, by their own", async () => {
    const message = await refusalOf((name) => name.replace(/layers\.1\./, "layers.7."));
    assert.match(message, /missing: 'model\.layers\.1\..*\n.*unexpected: 'model\.layers\.7\./s);
  });

  it("of one kind once, where there are many", async () => {
    const message = await refusalOf((name) => name.replace(/(\w+)\.weight$/, "$1.kernel"));
    assert.match(message, /missing: 'model\.layers\.\*\.self_attn\.q_proj\.weight' \[[\d, ]+\] \(2 times\)/);
    assert.ok(message.split("\n").length < 40, message);
  });
});
