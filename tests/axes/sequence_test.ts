/** Sequence parallelism: the bits of tensor parallelism, fewer activations, which collectives a step makes, and what is refused. @module */
import assert from "node:assert/strict";
import { zooModels } from "../../scripts/zoo/families.ts";
import { sharedTest as test, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { LLAMA } from "./llama_ranks.ts";
import { mistakes, type SequenceOrders, type SequenceReport, trainRows } from "./sequence_ranks.ts";

async function train(orders: SequenceOrders): Promise<readonly SequenceReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  return valuesOf<SequenceReport>(await world(size, trainRows, { data: orders }));
}

function assertNear(found: readonly number[], expected: readonly number[], most: number): void {
  assert.equal(found.length, expected.length);
  for (const [i, value] of found.entries()) {
    const wanted = expected[i] ?? NaN;
    assert.ok(Math.abs(value - wanted) <= most * Math.abs(wanted), `${i}: ${value}, not ${wanted}`);
  }
}

const configOf = (family: string): SequenceOrders["config"] => zooModels(family)[0]?.hfConfig ?? assert.fail();

for (
  const [what, config, axes, rows, checkpointing] of usualFirst(
    [
      ["rows of one length", LLAMA, { shard: 1, tensor: 2 }, [2, 10], false],
      [
        "a row of its own, checkpointed",
        { ...LLAMA, attention_bias: true, mlp_bias: true },
        { tensor: 4 },
        [1, 8],
        true,
      ],
      ["positions that ranks do not divide", LLAMA, { shard: 1, tensor: 4 }, [2, 9], false],
      ["fewer positions than ranks", LLAMA, { shard: 1, tensor: 4 }, [2, 3], false],
      ["a mixture", configOf("qwen3_moe"), { shard: 1, tensor: 2 }, [2, 7], true],
      ["latent attention", configOf("deepseek_v2"), { shard: 1, tensor: 2 }, [2, 7], false],
      ["layers side by side", configOf("phi"), { shard: 1, tensor: 2 }, [2, 7], false],
    ] as const,
    (place) => place === 1 || place === 2,
  )
) {
  test(`norms sequence_parallel of ${what}: losses have the bits of whole rows`, async () => {
    const whole = await train({ config, axes, rows, sequenceParallel: false, checkpointing });
    const parts = await train({ config, axes, rows, sequenceParallel: true, checkpointing });
    const [expected = assert.fail()] = whole;
    for (const { losses, norms, last, uncut, evaluated, generated } of parts) {
      assert.equal(losses[0], expected.losses[0]);
      assertNear(losses, expected.losses, 2e-6);
      assertNear(norms, expected.norms, 2e-5);
      assertNear([evaluated], [expected.evaluated], 1e-5);
      assert.deepEqual(generated, expected.generated);
      // A norm's gradient is a sum over positions in another order; copies of it are one sum.
      assert.deepEqual([last, uncut], [parts[0]?.last, parts[0]?.uncut]);
    }
    if (rows[1] <= 3) return; // so few positions are less than what a rank gathers
    for (const [rank, { activations }] of parts.entries()) {
      assert.ok(activations < (whole[rank]?.activations ?? NaN), `${activations} of ${whole[rank]?.activations}`);
    }
  });
}

test("a step gathers rows before attention and feed-forward, and reduce-scatters behind, in each direction", async () => {
  const orders = { config: LLAMA, axes: { shard: 1, tensor: 2 }, rows: [2, 8], sequenceParallel: true } as const;
  const [{ calls } = assert.fail()] = await train(orders);
  const layer = (i: number, name: string, out: string) => `model.layers.${i}.${name}${out}`;
  const forward = [0, 1].flatMap((i) =>
    [["self_attn", ".o_proj"], ["mlp", ".down_proj"]].flatMap(([name = "", out = ""]) => [
      `all-gather input of '${layer(i, name, "")}'`,
      `reduce-scatter output of '${layer(i, name, out)}'`,
    ])
  );
  const backward = [1, 0].flatMap((i) =>
    [["mlp", ".down_proj", "post_attention_layernorm"], ["self_attn", ".o_proj", "input_layernorm"]].flatMap(
      ([name = "", out = "", norm = ""]) => [
        `all-gather gradient of the output of '${layer(i, name, out)}'`,
        `reduce-scatter gradient of the input of '${layer(i, name, "")}'`,
        `all-reduce gradient of the input of '${layer(i, norm, "")}'`,
      ],
    )
  );
  const inside = calls.filter((call) => call.includes("layers") && !call.includes("input of 'model.layers.0'"));
  assert.deepEqual(inside, [...forward, ...backward]);
});

test("plans that share positions of some norms only, and layers that drop out, are refused by name", async () => {
  const gpt2 = { ...configOf("gpt2"), resid_pdrop: 0.1 };
  for (const errors of valuesOf(await world(2, mistakes, { data: [LLAMA, gpt2] }))) {
    const [few = "", other = "", part = "", dropping = "", ...cuts] = errors;
    assert.match(few, /ArgumentError: .* the plan must say sequence_parallel of 'model\.norm' too/);
    assert.match(other, /ArgumentError: Cannot cut 'lm_head' sequence_parallel: /);
    assert.match(part, /ArgumentError: .*PreNormBlock has no blocks and no norm behind them; give the whole model/);
    assert.match(dropping, /UnsupportedError: .*'transformer\.h\.0\.\S+' applies dropout by position in a row/);
    assert.deepEqual(cuts, ["", ""]);
  }
});
