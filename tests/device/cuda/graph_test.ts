/**
 * Training by CUDA graphs on doubles of NVIDIA's libraries: steps that are launched give the bits of steps that are enqueued call by
 * call, and no access is a race.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { buildCudaTwin, lackingForTwin } from "../../native/cuda/build.ts";
import { shareOf } from "../../support/share.ts";
import { valuesOf, world } from "../../support/world.ts";
import { type GraphTraining, trainByGraph, type Trained } from "./graph_ranks.ts";
import { CONFIG } from "./llama.ts";

const skip = lackingForTwin();
const OPTIONS = { skip, timeout: 600_000 };

async function trained(size: number, data: GraphTraining): Promise<readonly Trained[]> {
  const { variables } = await buildCudaTwin();
  return valuesOf(await world(size, trainByGraph, { over: "nccl", variables, data, planes: { timeoutSeconds: 200 } }));
}

/** Fails unless a training gives the same with and without graphs. */
async function requireSame(size: number, run: Omit<GraphTraining, "hasGraph">, replays: number): Promise<void> {
  const expected = await trained(size, { ...run, hasGraph: false });
  const found = await trained(size, { ...run, hasGraph: true });
  for (const [rank, one] of found.entries()) {
    const other = expected[rank] ?? assert.fail();
    assert.deepEqual([one.error, one.steps, one.digest], [other.error, other.steps, other.digest], `rank ${rank}`);
    assert.deepEqual([one.replays, other.replays], [replays, 0]);
    assert.deepEqual([one.graphs, one.left], [[1, 0], 0]);
  }
}

type Case = readonly [what: string, size: number, run: Omit<GraphTraining, "hasGraph">, replays: number];
const LLAMA = { config: CONFIG, steps: 20 };
const CASES: readonly Case[] = [
  ["FSDP on 1 card", 1, LLAMA, 17],
  ["FSDP on 2 cards", 2, LLAMA, 17],
];
for (const [what, size, run, replays] of shareOf(CASES)) {
  test(`${what} trains by graphs to the bits of single calls`, OPTIONS, () => requireSame(size, run, replays));
}
