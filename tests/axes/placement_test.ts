/**
 * Weights that are cut over an axis, under FSDP and DDP: first values, checkpoints and optimizers' states are those of one rank to the
 * bit on any mesh; training agrees with one rank within rounding, with clipping active, and copies stay equal.
 *
 * @module
 */
import assert from "node:assert/strict";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import type { Layout } from "./modules.ts";
import { normsOf, type Orders, overflowOn, refusals, type Trained, trainLaidOut } from "./placement_ranks.ts";

const ONE: Layout = { shard: 1, tensor: 1 };

function sizeOf({ replicate = 1, shard, tensor }: Layout): number {
  return replicate * shard * tensor;
}

async function train(orders: Orders): Promise<readonly Trained[]> {
  return valuesOf<Trained>(await world(sizeOf(orders.layout), trainLaidOut, { data: orders }));
}

function assertNear(found: readonly number[], expected: readonly number[], most: number, what: string): void {
  assert.equal(found.length, expected.length);
  for (const [i, value] of found.entries()) {
    const wanted = expected[i] ?? NaN;
    assert.ok(Math.abs(value - wanted) <= most * Math.abs(wanted), `${what} ${i}: ${value}, on one rank ${wanted}`);
  }
}

const LAYOUTS: readonly (readonly [string, Layout])[] = [
  ["2 × 2", { shard: 2, tensor: 2 }],
  ["1 × 2", { shard: 1, tensor: 2 }],
  ["1 × 4", { shard: 1, tensor: 4 }],
  ["4 × 1", { shard: 4, tensor: 1 }],
  ["2 × 1 × 2", { replicate: 2, shard: 1, tensor: 2 }],
  ["2 × 2 × 2", { replicate: 2, shard: 2, tensor: 2 }],
  ["2 × 2 by DDP", { shard: 2, tensor: 2, mode: "ddp" }],
];

const MODELS: readonly (readonly [string, Partial<Layout>])[] = [
  ["even", {}],
  ["uneven", { inner: 97, bias: true }],
  ["fused and uneven", { inner: 71, fused: true }],
  ["fused, with weights [in, out]", { fused: true, weights: "inOut", bias: true }],
];

for (const [what, model] of usualFirst(MODELS, (place) => place > 0)) {
  test(`a model with ${what} weights begins and trains over axes as on one rank`, async () => {
    const [alone] = await train({ layout: { ...ONE, ...model }, steps: 4 });
    assert.ok(alone !== undefined && alone.norms.every((norm) => norm > 0.5), "clipping is active");
    for (const [name, layout] of usualFirst(LAYOUTS, (place) => place === 0)) {
      const all = await train({ layout: { ...layout, ...model }, steps: 4 });
      for (const [rank, { first, losses, norms, last, states, uncut }] of all.entries()) {
        const where = `${name}, rank ${rank}`;
        assert.equal(first, alone.first, where);
        assertNear(losses, alone.losses, 1e-5, `loss of ${where}`);
        assertNear(norms, alone.norms, 2e-5, `norm of ${where}`);
        assert.deepEqual([last, states, norms], [all[0]?.last, all[0]?.states, all[0]?.norms], where);
        // Ranks that differ on the tensor axis alone keep the same bits of what it does not cut.
        assert.equal(uncut, all[rank - rank % layout.tensor]?.uncut, where);
      }
    }
  });
}

test("parameters have the shapes of their parts, uneven ones too", async () => {
  const all = await train({ layout: { shard: 1, tensor: 2, inner: 95, bias: true }, steps: 0 });
  const [first, second] = all.map(({ shapes }) => shapes);
  const shape = (rows: number): string[] => [
    `blocks.0.mlp.gate_proj.weight [${rows},48] of [95,48]`,
    `blocks.0.mlp.gate_proj.bias [${rows}] of [95]`,
    `blocks.0.mlp.down_proj.weight [48,${rows}] of [48,95]`,
    "blocks.0.mlp.down_proj.bias [48] of [48]",
    "blocks.0.norm.weight [48] of [48]",
  ];
  for (const line of shape(48)) assert.ok(first?.includes(line), `${line} in ${first}`);
  for (const line of shape(47)) assert.ok(second?.includes(line), `${line} in ${second}`);
});

for (const [what, model] of usualFirst(MODELS, (place) => MODELS[place]?.[0] === "fused and uneven")) {
  test(`checkpoints of ${what} weights go from any mesh to any other to the bit, with the optimizer's states`, async () => {
    const layouts = [ONE, ...LAYOUTS.map(([, layout]) => layout)].map((layout) => ({ ...layout, ...model }));
    const further = onlyInAll(what === "uneven" ? layouts.toSpliced(1, 1) : layouts.slice(0, 1));
    for (const saving of [...layouts.slice(1, 2), ...further]) {
      using folder = temporaryDirectory();
      const [saved] = await train({ layout: saving, steps: 2, to: folder.path });
      for (const loading of usualFirst(layouts, (place) => place % 3 === 0)) {
        const [loaded] = await train({ layout: loading, steps: 0, from: folder.path });
        const where = `${JSON.stringify(saving)} to ${JSON.stringify(loading)}`;
        assert.deepEqual([loaded?.first, loaded?.states], [saved?.last, saved?.states], where);
      }
      const [again] = await train({ layout: saving, steps: 1, from: folder.path });
      const [through] = await train({ layout: saving, steps: 3 });
      assert.deepEqual([again?.last, again?.losses], [through?.last, through?.losses.slice(2)]);
    }
  });
}

test("Hugging Face folders go from any mesh to any other to the bit", async () => {
  const usual = [{ shard: 2, tensor: 2, inner: 95, bias: true }];
  for (const saving of [...usual, ...onlyInAll([{ shard: 1, tensor: 4, fused: true }])]) {
    using folder = temporaryDirectory();
    const [saved] = await train({ layout: saving, steps: 1, to: folder.path, isHf: true });
    for (const mesh of [ONE, { shard: 4, tensor: 1 }, { shard: 2, tensor: 2 }, { shard: 1, tensor: 2 }]) {
      const [loaded] = await train({ layout: { ...saving, ...mesh }, steps: 0, from: folder.path, isHf: true });
      assert.equal(loaded?.first, saved?.last);
    }
  }
});

test("sharding along a dim of a part that an axis has cut begins and trains as on one rank", async () => {
  for (const model of [{ inner: 95, bias: true }, ...onlyInAll([{}])]) {
    const [alone] = await train({ layout: { ...ONE, ...model }, steps: 3 });
    const all = await train({ layout: { shard: 2, tensor: 2, dim: 0, ...model }, steps: 3 });
    assert.equal(all[0]?.first, alone?.first);
    assertNear(all[0]?.losses ?? [], alone?.losses ?? [], 1e-5, "loss");
  }
});

test("norms of every type count each part once", async () => {
  for (const model of [{ inner: 95, bias: true }, ...onlyInAll([{}])]) {
    const [alone] = valuesOf(await world(1, normsOf, { data: { ...ONE, ...model } }));
    for (const [name, layout] of usualFirst(LAYOUTS, (place) => [1, 5].includes(place))) {
      const all = valuesOf(await world(sizeOf(layout), normsOf, { data: { ...layout, ...model } }));
      for (const norms of all) {
        assert.deepEqual(norms, all[0], name);
        assertNear(norms, alone ?? [], 1e-5, `norm over ${name}`);
      }
    }
  }
});

test("an overflow on one rank of a tensor axis skips the step on all ranks of all axes", async () => {
  const layout = { shard: 2, tensor: 2 };
  for (const who of [2, 3]) {
    for (const found of valuesOf(await world(4, overflowOn, { data: [layout, who] }))) {
      assert.deepEqual(found, [512, 1]);
    }
  }
  for (const found of valuesOf(await world(4, overflowOn, { data: [layout, -1] }))) assert.deepEqual(found, [1024, 0]);
});

test("whole tensors of a part of the ranks are refused with what is missing", async () => {
  for (
    const [act, pattern] of [
      ["save over a part of the ranks", /ranks hold \d+ of the 4608 elements of 'blocks\.0\.mlp\.gate_proj\.weight'/],
      ["make whole alone", /^ArgumentError: Cannot make 'blocks\.0\.mlp\.gate_proj\.weight' whole/],
    ] as const
  ) {
    for (const message of valuesOf(await world(4, refusals, { data: act }))) assert.match(message, pattern);
  }
});
