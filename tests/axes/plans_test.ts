/** The families' plans of tensor parallelism: against transformers' own (`make_plans.py`), and what of a model they cut. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { buildModel } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { tensorPlanOf } from "../../mod.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";

const { families }: { readonly families: Readonly<Record<string, Readonly<Record<string, string>>>> } = JSON.parse(
  readFileSync(new URL("../fixtures/tensor_plans.json", import.meta.url), "utf8"),
);

/** Families whose plan here cuts more than transformers' does, or by heads what transformers gathers. */
const OWN: readonly string[] = ["gpt2", "modernbert-decoder", "lfm2", "gpt_oss", "phimoe", "glm4", "glm4_moe_lite"];

const device = await openDevice("cpu");

function configOf(family: string): Readonly<Record<string, unknown>> {
  return zooModels(family)[0]?.hfConfig ?? assert.fail(family);
}

function matches(name: string, pattern: string): boolean {
  return new RegExp(`^${pattern.replaceAll(".", "\\.").replaceAll("*", "[^.]+")}$`).test(name);
}

test("tensorPlanOf() gives transformers' plan of every family that has one there", () => {
  for (const family of ZOO) {
    const model = buildModel(device, configOf(family));
    const names = [...model.namedModules(), ...model.namedParameters()].map(([name]) => name);
    const found = tensorPlanOf(model);
    const expected = families[family] ?? assert.fail(`no plan of ${family}`);
    for (const [pattern, style] of Object.entries(expected)) {
      if (!names.some((name) => matches(name, pattern))) continue;
      if (family === "glm4" && pattern.includes("mlp")) continue; // gate and up are cut side by side here
      assert.equal(found[pattern], style, `${family} ${pattern}`);
    }
    if (OWN.includes(family)) continue;
    const more = Object.keys(found).filter((pattern) => expected[pattern] === undefined);
    assert.deepEqual(more, family === "phi" ? more.filter((name) => name.includes("layernorm")) : [], family);
  }
});

test("tensorPlanOf() cuts every matrix of a family but routers, latent rows, positions and what is read by ids", () => {
  const whole =
    /embed|wte|wpe|tok_embeddings|router|mlp\.gate\.weight|shared_expert|q_a_proj|kv_a_proj|indexer|conv1d|dense|_bias$/;
  for (const family of ZOO) {
    const model = buildModel(device, configOf(family));
    const plan = Object.keys(tensorPlanOf(model));
    for (const [name, { shape }] of model.namedParameters()) {
      if (shape.length < 2) continue;
      const isCut = plan.some((pattern) => matches(name, pattern) || matches(name.replace(/\.weight$/, ""), pattern));
      assert.ok(isCut || whole.test(name), `${family} ${name}`);
    }
  }
});

test("tensorPlanOf() takes styles of one's own for some names, and leaves the family's for the others", () => {
  const model = buildModel(device, configOf("llama"));
  const plan = tensorPlanOf(model, {
    "model.layers.0.mlp.up_proj": "colwise_gather_output",
    "model.layers.*.self_attn.q_proj": "colwise_gather_output",
  });
  assert.equal(plan["model.layers.0.mlp.up_proj"], "colwise_gather_output");
  assert.equal(plan["model.layers.1.mlp.up_proj"], "colwise");
  assert.equal(plan["model.layers.*.mlp.up_proj"], undefined);
  assert.equal(plan["model.layers.*.mlp.down_proj"], "rowwise");
  assert.equal(plan["model.layers.*.self_attn.q_proj"], "colwise_gather_output");
  assert.equal(plan["model.layers.0.self_attn.q_proj"], undefined);
});

test("tensorPlanOf() gathers where masks of dropout would be others than on one rank", () => {
  const gpt2 = configOf("gpt2");
  for (
    const [attn_pdrop, inputs, output] of [
      [0.1, "colwise_gather_output", "rowwise_split_input"],
      [0, "colwise", "rowwise"],
    ] as const
  ) {
    const plan = tensorPlanOf(buildModel(device, { ...gpt2, attn_pdrop }));
    assert.deepEqual(
      [plan["transformer.h.*.attn.c_attn"], plan["transformer.h.*.attn.c_proj"]],
      [inputs, output],
    );
  }
});
