/** Orders of a pipeline against PyTorch's (`make_pipeline.py`), stages against transformers' plans (`make_plans.py`), and divisions. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { deviceMesh, openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { buildModel } from "../../doors/nn.ts";
import { type CausalLm, parallelizePipeline, type PipelineSplit } from "../../mod.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { orderOf, slotsOf, type StageAction } from "../../src/axes/pipeline_schedule.ts";

function fixture<T>(name: string): T {
  return JSON.parse(readFileSync(new URL(`../fixtures/${name}.json`, import.meta.url), "utf8"));
}

const textOf = ({ kind, stage, microBatch }: StageAction): string =>
  `${kind === "forward" ? "F" : "B"}${stage}.${microBatch}`;

test("orderOf() gives the orders of PyTorch's ScheduleInterleaved1F1B, which need no more slots than its longest rank", () => {
  interface Case {
    readonly ranks: number;
    readonly stagesPerRank: number;
    readonly microBatches: number;
    readonly orders: readonly string[];
  }
  const cases = fixture<readonly Case[]>("pipeline_orders");
  assert.ok(cases.length > 25);
  for (const { orders, ...sizes } of cases) {
    for (const [rank, expected] of orders.entries()) {
      assert.equal(orderOf("interleaved", rank, sizes).map(textOf).join(" "), expected, JSON.stringify(sizes));
    }
    const slots = slotsOf("interleaved", sizes);
    for (const rank of orders.keys()) {
      const taken = slots.flatMap((slot) => slot[rank] ?? []).map(textOf).join(" ");
      assert.equal(taken, orders[rank], "slots keep the order");
    }
  }
});

test("orderOf() of 1f1b warms up with a forward for each stage behind, then takes turns; all ranks wait as little as they can", () => {
  const sizes = { ranks: 4, stagesPerRank: 1, microBatches: 6 };
  const orders = Array.from({ length: 4 }, (_, rank) => orderOf("1f1b", rank, sizes).map(textOf).join(" "));
  assert.equal(orders[0], "F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5");
  assert.equal(orders[2], "F2.0 F2.1 B2.0 F2.2 B2.1 F2.3 B2.2 F2.4 B2.3 F2.5 B2.4 B2.5");
  assert.equal(orders[3], "F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 F3.4 B3.4 F3.5 B3.5");
  for (let ranks = 1; ranks <= 6; ranks++) {
    for (let microBatches = ranks; microBatches <= 12; microBatches++) {
      // Each rank has a forward and a backward for each micro-batch, and waits for the ranks before and behind it once.
      const slots = slotsOf("1f1b", { ranks, stagesPerRank: 1, microBatches });
      assert.equal(slots.length, 2 * (microBatches + ranks - 1));
    }
  }
});

test("a schedule refuses numbers of micro-batches that it has no order for", () => {
  assert.throws(() => slotsOf("1f1b", { ranks: 4, stagesPerRank: 1, microBatches: 3 }), {
    name: "ArgumentError",
    message:
      /Cannot run 3 micro-batches .* on 4 ranks by '1f1b': give each rank at least 4, as many as stages, in a step/,
  });
  assert.throws(() => slotsOf("interleaved", { ranks: 2, stagesPerRank: 2, microBatches: 5 }), {
    name: "ArgumentError",
    message: /Cannot run 5 micro-batches .* on 2 ranks by 'interleaved': give each rank a multiple of 2, in a step/,
  });
});

const device = await openDevice("cpu");
const axis = deviceMesh(await openProcessGroup({ device }), { pipeline: 1 }).get("pipeline");

/** The stages of modules by name, of a model in as many stages as it has blocks. */
function stagesOf(model: CausalLm): (name: string) => readonly number[] {
  const count = model.layers.length;
  const pipeline = parallelizePipeline(model, axis, { schedule: "interleaved", stagesPerRank: count });
  return (name) => {
    const found = [...model.namedModules()].find(([path]) => path === name)?.[1] ?? assert.fail(name);
    return [...new Set([...found.parameters()].flatMap((parameter) => pipeline.stagesOf(parameter)))];
  };
}

test("stages begin and end with the modules that transformers' pipeline plans say", () => {
  const { stages } = fixture<
    { readonly stages: Readonly<Record<string, readonly [readonly string[], readonly string[]] | null>> }
  >(
    "tensor_plans",
  );
  let seen = 0;
  for (const [family, plan] of Object.entries(stages)) {
    if (plan === null) continue;
    for (const { tied, hfConfig } of zooModels(family)) {
      const model = buildModel(device, hfConfig);
      const last = model.layers.length - 1;
      const of = stagesOf(model);
      const before: readonly string[] = plan[0];
      const behind: readonly string[] = plan[1];
      // What drops out has no parameters, and is there only where it does.
      for (const name of before.filter((name) => !name.endsWith("dropout"))) {
        assert.deepEqual(of(name), tied ? [0, last] : [0], `${family} ${name}`);
      }
      for (const name of behind) {
        const isTied = tied && name.endsWith("lm_head");
        assert.deepEqual(isTied ? of(name).slice(0, 2) : of(name), isTied ? [0, last] : [last], `${family} ${name}`);
      }
      for (const [i, { fqn = "" }] of model.layers.entries()) assert.deepEqual(of(fqn), [i], fqn);
      seen++;
    }
  }
  assert.ok(seen > 40);
});

test("parallelizePipeline() divides blocks evenly, by parameters, or as told", () => {
  const { hfConfig } = zooModels("llama")[0] ?? assert.fail();
  const divide = (split: PipelineSplit | undefined, count: number, changes: object = {}): readonly number[] => {
    const model = buildModel(device, { ...hfConfig, num_hidden_layers: 7, ...changes });
    const { stages } = parallelizePipeline(model, axis, { schedule: "interleaved", stagesPerRank: count, split });
    assert.equal(stages[0]?.begin, 0);
    for (const [i, { begin }] of stages.entries()) assert.equal(begin, i === 0 ? 0 : stages[i - 1]?.end);
    return stages.map(({ begin, end }) => end - begin);
  };
  assert.deepEqual(divide(undefined, 3), [3, 2, 2]); // as transformers does
  assert.deepEqual(divide([1, 5, 1], 3), [1, 5, 1]);
  // Embedding and head have as many parameters as several blocks.
  const large = { vocab_size: 1000, hidden_size: 32, intermediate_size: 48, num_attention_heads: 4 };
  assert.deepEqual(divide("parameters", 3, { ...large, tie_word_embeddings: false }), [1, 5, 1]);
  assert.deepEqual(divide("parameters", 2, { vocab_size: 8, tie_word_embeddings: false }), [4, 3]);
  for (const split of [[1, 2, 3], [7], [0, 4, 3], [3.5, 3.5, 0]]) {
    assert.throws(() => divide(split, 3), {
      name: "ArgumentError",
      message: /Cannot divide 7 blocks into stages of [\d., ]+: give 3 numbers from 1 that add up to 7/,
    });
  }
  assert.throws(() => divide(undefined, 8), {
    name: "ArgumentError",
    message: /Cannot divide 7 blocks into 8 stages: each stage needs a block; give fewer stages/,
  });
});
