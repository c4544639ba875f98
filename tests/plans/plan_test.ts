/** The modules that a plan makes units of, and the errors of plans that do not fit a model. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { CausalLm } from "../../mod.ts";
import { openDevice } from "../../doors/device.ts";
import { ConfigError } from "../../doors/errors.ts";
import { Embedding, Linear, Module, ModuleList } from "../../doors/nn.ts";
import type { Tensor } from "../../mod.ts";
import { buildModel } from "../../src/models/registry.ts";
import { classNameOf } from "../../src/plans/anatomy.ts";
import { type FsdpPlan, fsdpPlanSchema, resolvePlan } from "../../src/plans/plan.ts";
import { SIZES } from "./plan_ranks.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });

function llama(tied: boolean): CausalLm {
  return buildModel(device, { ...SIZES, tie_word_embeddings: tied });
}

/** Units as names joined by commas; `(kept)` where whole parameters stay for the backward. */
function unitsOf(model: Module, plan: FsdpPlan): readonly string[] {
  return resolvePlan(model, plan).units.map(({ modules, free, cpuOffload, mixedPrecision }) => {
    const said = [free === false ? "kept" : "", cpuOffload ? "offload" : "", mixedPrecision ? "mixed" : ""];
    const words = said.filter((word) => word !== "").join(" ");
    return [...modules.keys()].join(", ") + (words === "" ? "" : ` (${words})`);
  });
}

const [embedding, layers] = ["model.embed_tokens", ["model.layers.0", "model.layers.1"]] as const;
const mlps = layers.map((name) => `${name}.mlp`);
const attentions = layers.map((name) => `${name}.self_attn`);

describe("resolvePlan()", () => {
  it("makes units of embeddings, blocks, and final norm with head, tied or not", () => {
    assert.deepEqual(unitsOf(llama(false), "auto"), [embedding, ...layers, "model.norm, lm_head (kept)"]);
    assert.deepEqual(unitsOf(llama(true), "auto"), [`${embedding}, model.norm, lm_head (kept)`, ...layers]);
    assert.deepEqual(resolvePlan(llama(false), "auto").notes, []);
    assert.deepEqual(resolvePlan(llama(true), "auto").notes, [
      "One unit is made of 'model.embed_tokens', 'model.norm', 'lm_head', as they share 'model.embed_tokens.weight'",
    ]);
  });

  it("takes modules by pattern, with what holds for each", () => {
    const modules = {
      "model.embed_tokens": ["free_full_weight"],
      "model.layers.*": ["free_full_weight", "mixed_precision"],
      "model.norm": ["keep_full_weight"],
      "lm_head": ["keep_full_weight"],
    } as const;
    const blocks = layers.map((name) => `${name} (mixed)`);
    const plan = { mode: "manual", modules } as const;
    assert.deepEqual(unitsOf(llama(false), plan), [embedding, ...blocks, "model.norm, lm_head (kept)"]);
    assert.deepEqual(unitsOf(llama(true), plan), [`${embedding}, model.norm, lm_head (kept)`, ...blocks]);
    const some = { "model.layers.*.mlp": [], "model.layers.1": ["keep_full_weight", "cpu_offload"] } as const;
    assert.deepEqual(unitsOf(llama(false), { mode: "manual", modules: some }), [
      ...mlps,
      `${layers[1]} (kept offload)`,
    ]);
  });

  it("takes modules by Hugging Face's names of their classes; of none, the model's blocks", () => {
    assert.deepEqual(unitsOf(llama(false), "transformer"), layers);
    assert.deepEqual(unitsOf(llama(false), { mode: "transformer", classes: [] }), layers);
    assert.deepEqual(unitsOf(llama(false), { mode: "transformer", classes: ["LlamaMLP"] }), mlps);
    assert.deepEqual(unitsOf(llama(false), { mode: "transformer", classes: ["LlamaMLP", "LlamaDecoderLayer"] }), [
      ...mlps.slice(0, 1),
      ...layers.slice(0, 1),
      ...mlps.slice(1),
      ...layers.slice(1),
    ]);
    assert.equal(classNameOf(llama(false), llama(false).layers[0] ?? assert.fail()), "LlamaDecoderLayer");
  });

  // The modules that PyTorch's size_based_auto_wrap_policy wraps in the same model.
  const linears = layers.flatMap((layer) => [
    ...["q", "k", "v", "o"].map((name) => `${layer}.self_attn.${name}_proj`),
    ...["gate", "up", "down"].map((name) => `${layer}.mlp.${name}_proj`),
  ]);
  const pairs = layers.flatMap((_, i) => [attentions[i] ?? "", mlps[i] ?? ""]);
  const sizes: readonly (readonly [number, readonly string[]])[] = [
    [100, [embedding, ...linears, "lm_head"]],
    [400, [embedding, ...pairs, "lm_head"]],
    [1000, [embedding, ...mlps, "model", "lm_head"]],
    [1100, [...mlps, "model"]],
    [1200, layers],
    [2000, ["model"]],
  ];
  for (const [minNumParams, units] of sizes) {
    it(`takes modules of ${minNumParams} parameters that are in no smaller unit`, () => {
      assert.deepEqual(unitsOf(llama(false), { mode: "size", minNumParams }), units);
    });
  }

  it("makes one unit of a large module and the one that its weight is tied to", () => {
    const plan = { mode: "size", minNumParams: 1000 } as const;
    assert.deepEqual(unitsOf(llama(true), plan), [`${embedding}, lm_head`, ...mlps, "model"]);
    const one: FsdpPlan = { mode: "lambda", isUnit: (_, module) => module instanceof Embedding };
    assert.deepEqual(unitsOf(llama(false), one), [embedding]);
    assert.deepEqual(unitsOf(llama(true), one), [`${embedding}, lm_head`]);
  });

  it("takes modules that a function names, or none", () => {
    assert.deepEqual(unitsOf(llama(false), { mode: "lambda", isUnit: (name) => name.endsWith("mlp") }), mlps);
    assert.deepEqual(unitsOf(llama(false), "none"), []);
  });

  it("finds blocks of a model of one's own by class, not those inside others", () => {
    class MoeBlock extends Linear {}
    class MyDecoderLayer extends Module<[x: Tensor], Tensor> {
      readonly experts = new MoeBlock(device, 4, 4);
      forward(x: Tensor): Tensor {
        return this.experts.call(x);
      }
    }
    class MyModel extends Module<[x: Tensor], Tensor> {
      readonly wte = new Embedding(device, 8, 4);
      readonly encoder = new ModuleList([new MyDecoderLayer(), new MyDecoderLayer()]);
      readonly head = new Linear(device, 4, 8);
      forward(x: Tensor): Tensor {
        return this.head.call(x);
      }
    }
    const blocks = ["encoder.0", "encoder.1"];
    assert.deepEqual(unitsOf(new MyModel(), "transformer"), blocks);
    assert.deepEqual(unitsOf(new MyModel(), "auto"), ["wte", ...blocks]);
    assert.deepEqual(unitsOf(new MyModel(), { mode: "transformer", classes: ["MoeBlock"] }), [
      "encoder.0.experts",
      "encoder.1.experts",
    ]);
    assert.throws(() => resolvePlan(new Linear(device, 2, 2), "auto"), /whose blocks are known by their class/);
  });

  const wrong: readonly (readonly [FsdpPlan, readonly RegExp[]])[] = [
    [
      { mode: "transformer", classes: ["BertLayer"] },
      [/fsdpPlan\.classes: expected a class of LlamaForCausalLM, got 'BertLayer'\. Its block is 'LlamaDecoderLayer'$/],
    ],
    [
      { mode: "manual", modules: { "model.layer.*": [], "model.embed_token": [], "lm_head": [] } },
      [
        /expected modules of LlamaForCausalLM, got 'model\.layer\.\*', which names none\. Did you mean 'model\.layers\.\*'\?/,
        /got 'model\.embed_token', which names none\. Did you mean 'model\.embed_tokens'\?/,
      ],
    ],
    [
      { mode: "manual", modules: { "lm_head": ["keep_full_weight", "free_full_weight"] } },
      [/fsdpPlan\.modules\['lm_head'\]: expected 'free_full_weight' or 'keep_full_weight', got both/],
    ],
    [
      { mode: "manual", modules: { "model.layers.*": [], "model.layers.1": [] } },
      [/expected one pattern for each module, got 'model\.layers\.1' and another one for 'model\.layers\.1'/],
    ],
  ];
  for (const [plan, said] of wrong) {
    it(`refuses ${JSON.stringify(plan)}`, () => {
      assert.throws(() => resolvePlan(llama(false), plan), (error) => {
        assert.ok(error instanceof ConfigError);
        assert.equal(error.problems.length, said.length, error.message);
        for (const pattern of said) assert.match(error.message, pattern);
        return true;
      });
    });
  }

  it("has a schema of what a file can hold", () => {
    const plan = { mode: "manual", modules: { "model.layers.*": ["keep_full_weight"] } };
    assert.deepEqual(fsdpPlanSchema.parse(plan), plan);
    for (
      const none of ["automatic", { mode: "size" }, { mode: "manual", modules: { a: ["keep"] } }, { mode: "lambda" }]
    ) {
      assert.equal(fsdpPlanSchema.safeParse(none).success, false, JSON.stringify(none));
    }
  });
});
