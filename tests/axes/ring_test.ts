/** Context parallelism round a ring, and by exchanged heads: against float64, one rank, and the memory of gathered keys and values. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import { ownerAt, piecesOf, tilesOf } from "../../src/axes/ring_tiles.ts";
import { zigzag } from "../../src/axes/positions.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { evaluateRows } from "./context_ranks.ts";
import { trainFamily } from "./families_ranks.ts";
import {
  type AttentionCase,
  type AttentionInputs,
  type AttentionValues,
  float64Attention,
} from "./float64_attention.ts";
import { attendAll, ownOf, peaks, refusals, type SharedAttention } from "./ring_ranks.ts";

const SIZES = { batch: 2, seq: 48, heads: 4, kvHeads: 4, headDim: 8, valueDim: 6 };
const GROUPED = { ...SIZES, kvHeads: 2, valueDim: 8 };

/** Documents of which some end within a part, and one begins with its first position. */
const STARTS = Array.from(
  { length: 96 },
  (_, i) => i < 48 ? i < 7 ? 0 : i < 24 ? 7 : i < 41 ? 24 : 41 : i < 90 ? 0 : 42,
);
/** Rows whose parts have more positions than a call of a kernel takes, and no multiple of them. */
const LONG = { ...GROUPED, batch: 1, seq: 4 * 260, heads: 2, kvHeads: 1, window: 400, sinks: [0.5, -1] };

/** Models whose memory a dry run states: a family, its layers, and sizes that are not those of its small model. */
const MEASURED: readonly (readonly [family: string, layers: number, more: FamilyOrders["config"]])[] = [
  ["llama", 4, { hidden_size: 64, intermediate_size: 192 }],
  ...onlyInAll<[string, number, FamilyOrders["config"]]>([
    ["llama", 1, {}],
    ["llama", 3, { hidden_size: 64 }],
    ["llama", 7, { hidden_size: 64, intermediate_size: 192 }],
    ["mistral", 5, { hidden_size: 64, sliding_window: 9 }],
    ["granite", 6, {}],
    ["gpt_oss", 2, {}],
    ["mixtral", 2, {}],
    ["qwen3_next", 4, {}],
    ["lfm2", 3, {}],
  ]),
];

/** One rounding of a logarithm of a sum over hundreds of keys, from 8 on, which joining adds. */
const LOGARITHM = 2 ** -20;

const SINKS = [0.5, -1, 2, 0];

const CASES: Readonly<Record<string, AttentionCase>> = {
  "heads whose values have another width": SIZES,
  "grouped heads in documents": { ...GROUPED, starts: STARTS },
  "a window and sinks": { ...GROUPED, window: 9, sinks: SINKS },
  "a window in documents, bounded scores": { ...GROUPED, window: 9, starts: STARTS, softcap: 2 },
};

function valuesOfKey(name: string, length: number): number[] {
  const key = keyOf(7, name);
  return Array.from({ length }, (_, i) => Math.fround((uniformInt(key, i, 2001) - 1000) / 700));
}

function inputsOf({ batch, seq, heads, kvHeads, headDim, valueDim }: AttentionCase): AttentionInputs {
  const rows = batch * seq;
  return {
    q: valuesOfKey("q", rows * heads * headDim),
    k: valuesOfKey("k", rows * kvHeads * headDim),
    v: valuesOfKey("v", rows * kvHeads * valueDim),
    seed: valuesOfKey("seed", rows * heads * valueDim),
  };
}

/** The largest distance of values from float64's, as a part of its largest one. */
function distance(found: readonly number[], expected: readonly number[]): number {
  assert.equal(found.length, expected.length);
  const most = expected.reduce((top, value) => Math.max(top, Math.abs(value)), 0);
  return found.reduce((far, value, i) => {
    const off = Math.abs(value - (expected[i] ?? NaN)) / most;
    return Number.isNaN(off) ? Infinity : Math.max(far, off);
  }, 0);
}

const WHATS = ["out", "dq", "dk", "dv"] as const;

/** What each rank has, as one rank would: the distance of each from float64. */
function distancesOf(
  ranks: readonly AttentionValues[],
  sizes: AttentionCase,
  exact: AttentionValues,
): Readonly<Record<string, number>> {
  const size = ranks.length;
  const far = Object.fromEntries(WHATS.map((what) => [
    what,
    Math.max(
      ...ranks.map((found, rank) =>
        distance(found[what], size === 1 ? exact[what] : ownOf(exact[what], sizes, { rank, size }))
      ),
    ),
  ]));
  if (exact.dsinks.length === 0) return far;
  const sums = exact.dsinks.map((_, head) => ranks.reduce((sum, { dsinks }) => sum + (dsinks[head] ?? NaN), 0));
  return { ...far, dsinks: distance(sums, exact.dsinks) };
}

async function attendOver(size: number, all: readonly SharedAttention[]): Promise<readonly AttentionValues[][]> {
  const ranks = valuesOf(await world(size, attendAll, { data: all }));
  for (const { left } of ranks) assert.equal(left, 0, "bytes are left");
  return all.map((_, i) => ranks.map(({ values }) => values[i] ?? assert.fail()));
}

for (const size of usualFirst([4, 2, 3], (place) => place === 0)) {
  test(`attention round a ring of ${size} is as near to float64 as one rank's`, async () => {
    const all = Object.values(CASES).flatMap((sizes): SharedAttention[] =>
      (["float32", "bfloat16"] as const).map((dtype) => ({ sizes, inputs: inputsOf(sizes), dtype }))
    );
    const [alone, shared] = [await attendOver(1, all), await attendOver(size, all)];
    for (const [i, { sizes, inputs, dtype }] of all.entries()) {
      const exact = float64Attention(sizes, inputs);
      const [one, ring] = [alone[i] ?? [], shared[i] ?? []].map((ranks) => distancesOf(ranks, sizes, exact));
      for (const [what, found = NaN] of Object.entries(ring ?? {})) {
        const limit = 3 * (one?.[what] ?? NaN) + (dtype === "float32" ? 2e-7 : 0);
        assert.ok(found <= limit, `case ${i} (${dtype}): ${what} is ${found} off, one rank's ${one?.[what]}`);
      }
    }
  });
}

for (const starts of [undefined, ...onlyInAll([Array.from({ length: 1040 }, (_, i) => i < 500 ? 0 : 500)])]) {
  test(`attention round a ring computes long parts in pieces${starts === undefined ? "" : ", in documents"}`, async () => {
    const sizes: AttentionCase = { ...LONG, starts };
    const orders = { sizes, inputs: inputsOf(sizes), dtype: "float32" } as const;
    const exact = float64Attention(sizes, orders.inputs);
    const [[alone = []], [ring = []]] = [await attendOver(1, [orders]), await attendOver(2, [orders])];
    const [one, found] = [distancesOf(alone, sizes, exact), distancesOf(ring, sizes, exact)];
    for (const [what, far] of Object.entries(found)) {
      assert.ok(far <= 3 * (one[what] ?? NaN) + LOGARITHM, `${what}: ${far}`);
    }
  });
}

test("attention by exchanged heads has the bits of one rank", async () => {
  const all = Object.values(CASES).filter(({ kvHeads }) => kvHeads % 2 === 0)
    .map((sizes): SharedAttention => ({ sizes, inputs: inputsOf(sizes), dtype: "float32", strategy: "ulysses" }));
  const [alone, shared] = [await attendOver(1, all), await attendOver(2, all)];
  for (const [i, { sizes }] of all.entries()) {
    for (const [rank, found] of (shared[i] ?? []).entries()) {
      for (const what of WHATS) {
        assert.deepEqual(
          found[what],
          ownOf(alone[i]?.[0]?.[what] ?? [], sizes, { rank, size: 2 }),
          `case ${i}: ${what}`,
        );
      }
    }
  }
});

test("a token of a document changes no bit of others round a ring, outputs and gradients", async () => {
  const cases = ["grouped heads in documents", "a window in documents, bounded scores"].map((name) =>
    CASES[name] ?? SIZES
  );
  // Position 12 of both rows: in the second document of the first row, and in the first of the second.
  const changed = (values: readonly number[], { batch, seq }: AttentionCase): number[] => {
    const width = values.length / batch / seq;
    return values.map((value, i) => Math.floor(i / width) % seq === 12 ? value + 1 : value);
  };
  const all = cases.flatMap((sizes): readonly SharedAttention[] => {
    const inputs = inputsOf(sizes);
    const [q, k, v, seed] = [inputs.q, inputs.k, inputs.v, inputs.seed].map((values) => changed(values, sizes));
    const other = { q: q ?? [], k: k ?? [], v: v ?? [], seed: seed ?? [] };
    return [{ sizes, inputs, dtype: "float32" }, { sizes, inputs: other, dtype: "float32" }];
  });
  const found = await attendOver(2, all);
  const documentOf = Array.from({ length: 96 }, (_, i) => i < 48 ? STARTS[i] ?? NaN : 100 + (STARTS[i] ?? NaN));
  for (const [i, sizes] of cases.entries()) {
    for (const what of WHATS) {
      const moved = new Set([0, 1].flatMap((rank) => {
        const [was = [], is = []] = [found[2 * i]?.[rank]?.[what], found[2 * i + 1]?.[rank]?.[what]];
        const documents = ownOf(documentOf, sizes, { rank, size: 2 });
        const width = was.length / documents.length;
        return was.flatMap((value, i) => Object.is(value, is[i]) ? [] : [documents[Math.floor(i / width)]]);
      }));
      assert.deepEqual([...moved].sort(), [100, 7], what);
    }
  }
});

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  return valuesOf<FamilyReport>(await world(size, trainFamily, { data: orders }));
}

const MESHES: readonly MeshShape[] = [
  { shard: 1, context: 4 },
  { shard: 2, context: 2 },
  { shard: 1, context: 2, tensor: 2 },
];
const TRAINED = [
  ["gpt_oss", "ring", { shard: 2, context: 2 }, true],
  ["llama", "ring", { shard: 1, context: 4 }, false],
  ...["mistral", "deepseek_v2", "gemma2"].flatMap((family) =>
    MESHES.map((axes) => [family, "ring", axes, true] as const)
  ),
  ["qwen3_next", "ring", { shard: 1, context: 2 }, true],
  ["lfm2", "ring", { shard: 1, context: 4 }, false],
  ["llama", "ulysses", { shard: 2, context: 2 }, true],
  ["gpt_oss", "ulysses", { shard: 2, context: 2 }, false],
  ["deepseek_v2", "ulysses", { shard: 1, context: 4 }, false],
] as const;

for (const [family, commStrategy, axes, checkpointing] of usualFirst(TRAINED, (place) => place < 1)) {
  test(`${family} trains by ${commStrategy} over ${JSON.stringify(axes)} as on one rank, with clipping`, async () => {
    const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
    const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
    const all = await train({ config, axes, checkpointing, commStrategy });
    assert.deepEqual(bitFaults(all, alone, "tensor" in axes ? axes.tensor : 1), []);
    const { loss, norm, gradient, worst } = distanceOf(all, alone);
    assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, JSON.stringify({ loss, norm, gradient, worst }));
    for (const other of onlyInAll([!checkpointing])) {
      const again = await train({ config, axes, checkpointing: other, commStrategy });
      assert.deepEqual(again.map(({ last }) => last), all.map(({ last }) => last));
    }
  });
}

for (const commStrategy of onlyInAll(["ring", "ulysses"] as const)) {
  test(`an evaluation by ${commStrategy} hears nothing of other documents`, async () => {
    const config = zooModels("mistral")[0]?.hfConfig ?? assert.fail();
    const measure = async (changedAt?: number): Promise<unknown> => {
      const rows = { hasDocuments: true, countsSecond: true, ...changedAt === undefined ? {} : { changedAt } };
      const orders = { config, axes: { shard: 2, context: 2 }, commStrategy, ...rows };
      const all = valuesOf(await world(4, evaluateRows, { data: orders }));
      for (const found of all) assert.deepEqual(found, all[0]);
      return all[0];
    };
    const expected = await measure();
    assert.deepEqual(await measure(3), expected);
    assert.notDeepEqual(await measure(8), expected);
  });
}

test("a ring takes less memory than gathered keys and values, and as much as a dry run states", async () => {
  const sizes = { hidden_size: 64, intermediate_size: 64, num_attention_heads: 4, num_key_value_heads: 4 };
  const more = { num_hidden_layers: 4, max_position_embeddings: 256, vocab_size: 64 };
  const config = { ...zooModels("llama")[0]?.hfConfig, ...sizes, ...more };
  const measure = async (commStrategy: "allgather" | "ring", checkpointing: boolean): Promise<number> => {
    const orders: FamilyOrders = { config, axes: { shard: 1, context: 4 }, commStrategy, checkpointing };
    const ranks = valuesOf(await world(4, peaks, { data: orders }));
    for (const { peak, stated } of ranks) assert.equal(peak, stated);
    return Math.max(...ranks.map(({ beyond }) => beyond));
  };
  for (const [checkpointing, most] of [[false, 0.8] as const, ...onlyInAll([[true, 0.9] as const])]) {
    const [gathered, ring] = [await measure("allgather", checkpointing), await measure("ring", checkpointing)];
    assert.ok(ring < most * gathered, `${ring} bytes round a ring, ${gathered} gathered`);
  }
});

for (const [family, layers, more] of MEASURED) {
  test(`a dry run of ${layers} layers of ${family} states the memory of shards and of copies over positions`, async () => {
    const sizes = { num_hidden_layers: layers, max_position_embeddings: 64, ...more };
    const config = { ...zooModels(family)[0]?.hfConfig, ...sizes };
    for (const mode of ["ddp", "fsdp"] as const) {
      const orders: FamilyOrders = { config, axes: { shard: 2, context: 2 }, mode };
      // Chunks that gradients need several of, and staging of another size than is usual.
      for (const planes of [{}, { stagingBytes: 2 ** 20 }]) {
        const ranks = valuesOf(await world(4, peaks, { data: orders, planes }));
        assert.deepEqual(ranks.map(({ stated }) => stated), ranks.map(({ peak }) => peak), mode);
      }
    }
  });
}

test("strategies that are unknown, and calls that a ring cannot compute, are refused by name", async () => {
  const config = { ...zooModels("llama")[0]?.hfConfig, num_attention_heads: 3, num_key_value_heads: 3, head_dim: 8 };
  for (const [unknown = "", heads = "", ...others] of valuesOf(await world(2, refusals, { data: config }))) {
    assert.match(
      unknown,
      /^ArgumentError: .*allgather, ring or ulysses, got 'alltoall'; what PyTorch calls alltoall is ring/,
    );
    assert.match(heads, /the 3 heads of 'model\.layers\.0\.self_attn' are no multiple of 2 ranks/);
    const [mask = "", dropout = "", both = "", few = ""] = others;
    assert.match(mask, /^UnsupportedError: Cannot attend round a ring in 'layers\.0' with a mask of keys: /);
    assert.match(dropout, /^UnsupportedError: .* with dropout: /);
    assert.match(both, /^UnsupportedError: .* with keys behind each query: /);
    assert.match(few, /^ArgumentError: .* the 1 heads of 'layers\.0' are no multiple of 2 ranks/);
  }
});

test("tilesOf() has each query and each key before it meet once, and gives ranks as much to do", () => {
  for (const size of [2, 3, 5]) {
    const pairs = new Set<string>();
    for (let rank = 0; rank < size; rank++) {
      for (let step = 0; step < size; step++) {
        const owner = ownerAt(step, { rank, size });
        let work = 0;
        for (const { queries, keyParts, causal } of tilesOf(owner, { rank, size })) {
          const [query, keys] = [zigzag({ rank, size })[queries], zigzag({ rank: owner, size }).slice(0, keyParts)];
          work += keyParts;
          for (const key of keys) {
            const pair = `${query} ${key}`;
            assert.ok(!pairs.has(pair) && (causal ? key <= query : key < query), pair);
            pairs.add(pair);
          }
        }
        assert.equal(work, step === 0 ? 3 : 2);
      }
    }
    assert.equal(pairs.size, 2 * size * (2 * size + 1) / 2);
  }
});

test("piecesOf() divides the queries of a tile, each with its keys", () => {
  assert.deepEqual(piecesOf({ queries: 1, keyParts: 2, causal: true }, 5, 2), [
    { start: 5, queries: 2, keys: 7, causal: true },
    { start: 7, queries: 2, keys: 9, causal: true },
    { start: 9, queries: 1, keys: 10, causal: true },
  ]);
  assert.deepEqual(piecesOf({ queries: 0, keyParts: 1, causal: false }, 5, 256), [
    { start: 0, queries: 5, keys: 5, causal: false },
  ]);
});
