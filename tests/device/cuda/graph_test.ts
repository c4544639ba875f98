/**
 * Training by CUDA graphs on doubles of NVIDIA's libraries: steps that are launched give the bits of steps that are enqueued call by
 * call, and no access is a race. Where a case is not what the others are, it is run alone by `npm test -- --all`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { buildCudaTwin, lackingForTwin } from "../../native/cuda/build.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../../support/share.ts";
import { valuesOf, world } from "../../support/world.ts";
import { type GraphTraining, trainByBoth, type Trained } from "./graph_ranks.ts";
import { CONFIG } from "./llama.ts";

const skip = lackingForTwin();
const OPTIONS = { skip, timeout: 600_000 };

type Run = Omit<GraphTraining, "hasGraph">;

/** The results of each rank without graphs, and with them. */
async function both(size: number, run: Run): Promise<readonly (readonly [without: Trained, by: Trained])[]> {
  const { variables } = await buildCudaTwin();
  const options = { over: "nccl", variables, data: run, planes: { timeoutSeconds: 200 } } as const;
  return valuesOf(await world(size, trainByBoth, options));
}

/** Fails unless a training gives the same with and without graphs, of which there are some after it. */
async function requireSame(size: number, run: Run, replays: number, graphs = 1): Promise<void> {
  for (const [rank, [other, one]] of (await both(size, run)).entries()) {
    assert.deepEqual([one.error, one.steps, one.digest], [other.error, other.steps, other.digest], `rank ${rank}`);
    assert.deepEqual([one.replays, other.replays], [replays, 0]);
    assert.deepEqual([one.graphs, one.left], [[graphs, 0], 0]);
  }
}

type Case = readonly [what: string, size: number, run: Run, replays: number, graphs?: number];
const LLAMA = { config: CONFIG, steps: 20 };
/** Three steps by calls, a capture, and three launches of it more. */
const SHORT = { config: CONFIG, steps: 7, size: [8, 1] } as const;
const DROPOUT = { ...SHORT, config: { ...CONFIG, attention_dropout: 0.2 } };
/** Heads of 12 dims, and sizes that are multiples of nothing. */
const ODD = {
  ...{ ...CONFIG, hidden_size: 36, intermediate_size: 50, vocab_size: 97 },
  ...{ num_attention_heads: 3, num_key_value_heads: 1 },
};

/** A family's small config. */
function zoo(family: string): Readonly<Record<string, unknown>> {
  return JSON.parse(readFileSync(new URL(`../../fixtures/zoo/${family}.json`, import.meta.url), "utf8"));
}

const CASES: readonly Case[] = [
  ["GPT-2, whose positions are looked up", 2, { ...SHORT, config: zoo("gpt2") }, 4],
  ["GLM MoE DSA, whose indexer compares positions", 1, { ...SHORT, config: zoo("glm_moe_dsa") }, 4],
  ["FSDP on 1 card", 1, SHORT, 4],
  ["FSDP on 2 cards", 2, SHORT, 4],
  [
    "dropout, forwards and evaluations between steps, and rates that change",
    1,
    { ...DROPOUT, triedAfter: [2, 4], evaluatedAfter: [3], changed: { 5: "rate" } },
    4,
  ],
  [
    "a label that is no class, where losses are scaled",
    1,
    { ...SHORT, precision: "float16", badLabelAt: 5, goesOn: true },
    4,
  ],
  [
    "documents that begin elsewhere in each step, and padding that balanced routers leave out",
    1,
    { ...SHORT, isPacked: true, config: { ...zoo("mixtral"), output_router_logits: true, router_aux_loss_coef: 0.5 } },
    4,
  ],
  ["another optimizer", 1, { ...SHORT, steps: 10, changed: { 5: "optimizer" } }, 4],
  [
    "micro-batches, of which one rank has less, dropout, what is computed again, and a bound of the norm that changes",
    2,
    { ...DROPOUT, microBatches: 2, isUneven: true, isCheckpointed: true, changed: { 5: "norm" } },
    2,
    0,
  ],
];
const LONG_CASES: readonly Case[] = [
  ["FSDP on 1 card, for 20 steps", 1, LLAMA, 17],
  ["FSDP on 2 cards, for 20 steps", 2, LLAMA, 17],
  ["DDP on 2 cards", 2, LLAMA, 17],
  ["DDP with dropout and micro-batches", 2, { ...DROPOUT, microBatches: 2, strategy: "ddp" }, 4],
  ["HSDP on 4 cards", 4, { ...SHORT, strategy: "hsdp" }, 4],
  ["FSDP on 3 cards", 3, SHORT, 4],
  ["bfloat16", 1, { ...SHORT, precision: "bfloat16" }, 4],
  ["bfloat16 with DDP", 2, { ...SHORT, precision: "bfloat16", strategy: "ddp" }, 4],
  [
    "losses scaled so that they overflow before and after the capture",
    2,
    { ...SHORT, precision: "float16", initScale: 2 ** 27, steps: 12 },
    9,
  ],
  ["samples of another length for a while", 2, { ...SHORT, steps: 10, short: [4, 5] }, 2],
  ["forwards without a backward", 2, { ...SHORT, triedAfter: [2, 4, 5] }, 4],
  ["a label that is no class", 2, { ...SHORT, badLabelAt: 5, goesOn: true }, 4],
  ["a block that throws while a step is captured", 2, { ...SHORT, throwsAt: 3, goesOn: true }, 3],
  ["modes that change", 1, { ...DROPOUT, changed: { 4: "mode" } }, 1, 0],
  ["other betas", 1, { ...SHORT, changed: { 4: "betas" } }, 4],
  ["optimizer states that are given up on 2 cards", 2, { ...SHORT, steps: 10, changed: { 5: "states" } }, 4],
  ["a token at a time", 1, { ...SHORT, size: [1, 1] }, 4],
  [
    "a longer text between launches, whose tables of positions grow",
    1,
    { ...SHORT, config: zoo("gpt2"), longAfter: [4] },
    4,
  ],
  ["a longer text between launches, whose angles' tables grow", 1, { ...SHORT, longAfter: [4] }, 4],
  ["odd sizes in bfloat16 on 3 cards", 3, { ...SHORT, config: ODD, size: [7, 3], precision: "bfloat16" }, 4],
];
// One card and two, with all that changes between steps; the other cases have one thing more each.
const isUsual = (place: number): boolean => [0, 8].includes(place);
for (const [what, size, run, replays, graphs] of [...usualFirst(CASES, isUsual), ...onlyInAll(LONG_CASES)]) {
  test(`${what}: graphs give the bits of single calls`, OPTIONS, () => requireSame(size, run, replays, graphs));
}

const REFUSED: readonly (readonly [what: string, size: number, run: Run, said: RegExp])[] = [
  [
    "what is offloaded",
    2,
    { ...SHORT, strategy: "offload" },
    /^UnsupportedError: Cannot capture steps on cuda:\d: '.+' is offloaded/,
  ],
];
for (const [what, size, run, said] of onlyInAll(REFUSED)) {
  test(`${what} is refused by graphs, after which single calls go on`, OPTIONS, async () => {
    for (const [rank, [other, one]] of (await both(size, { ...run, goesOn: true })).entries()) {
      assert.match(one.error ?? "", said);
      assert.deepEqual([one.steps, one.digest], [other.steps, other.digest], `rank ${rank}`);
      assert.deepEqual([one.replays, one.graphs], [0, [0, 0]]);
    }
  });
}
