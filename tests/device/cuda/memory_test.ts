/** Memory of training steps on doubles of NVIDIA's libraries, as a dry run has told it before, by single calls and by a graph. @module */
import assert from "node:assert/strict";
import type { RunConfig } from "../../../doors/config.ts";
import { ZOO, zooModels } from "../../../scripts/zoo/families.ts";
import { measureMemory, type MemoryCase } from "../../fsdp/memory_scenario.ts";
import { buildCudaTwin, lackingForTwin } from "../../native/cuda/build.ts";
import { sharedTest as test, usualFirst } from "../../support/share.ts";
import { valuesOf, world } from "../../support/world.ts";
import { CONFIG } from "./llama.ts";

const OPTIONS = { skip: lackingForTwin(), timeout: 300_000 };
const SHARDED = { globalBatch: 2, sequenceLength: 8 } as const;

/** The model that is trained, and the settings. */
interface Case {
  readonly ranks: number;
  readonly hfConfig: MemoryCase["hfConfig"];
  readonly config: Partial<RunConfig>;
  /** The version of the double of NCCL. */
  readonly nccl?: string | undefined;
}

/** Trains a few steps on doubles of cards: each rank used as many bytes of each kind as it had expected. */
async function requireExpected({ ranks, hfConfig, config, nccl }: Case): Promise<void> {
  const variables = { ...(await buildCudaTwin()).variables, ...nccl === undefined ? {} : { TWIN_NCCL: nccl } };
  const data: MemoryCase = { hfConfig, config, steps: 6 };
  for (const { expected, measured } of valuesOf(await world(ranks, measureMemory, { over: "nccl", variables, data }))) {
    const { highest: _, ...bytes } = expected;
    const { highest: __, ...seen } = measured;
    assert.deepEqual(seen, bytes);
  }
}

const CASES: readonly (readonly [what: string, ranks: number, config: Partial<RunConfig>, nccl?: string])[] = [
  ["a rank alone", 1, SHARDED],
  ["two ranks", 2, SHARDED],
  ["two ranks with two micro-batches in bfloat16", 2, {
    ...SHARDED,
    globalBatch: 4,
    microBatches: 2,
    precision: "bfloat16",
  }],
  ["two ranks that register what they gather", 2, SHARDED, "22800"],
  ["two ranks with replicas", 2, { ...SHARDED, strategy: "ddp" }],
];
for (const [what, ranks, config, nccl] of usualFirst(CASES, (place) => place === 2)) {
  for (const cudaGraphs of [false, true]) {
    const by = cudaGraphs ? "by a graph" : "by single calls";
    test(
      `estimate of ${what} ${by} is what is in use, to the byte`,
      OPTIONS,
      () => requireExpected({ ranks, hfConfig: CONFIG, config: { ...config, cudaGraphs }, nccl }),
    );
  }
}

// In bfloat16, attention's backward works in memory as well.
const WAYS = [1, 2].flatMap((ranks) =>
  [false, true].map((cudaGraphs) => ({ ranks, cudaGraphs, precision: ranks === 1 ? "float32" : "bfloat16" } as const))
);
const MODELS = ZOO.flatMap((family) => WAYS.map((way) => ({ family, ...way })));
/** One way for each sixteenth family, by turns. */
const isUsual = (place: number): boolean => {
  const family = Math.floor(place / WAYS.length);
  return family % 16 === 0 && (1 + family / 16) % WAYS.length === place % WAYS.length;
};
for (const { family, ranks, cudaGraphs, precision } of usualFirst(MODELS, isUsual)) {
  const by = cudaGraphs ? "by a graph" : "by single calls";
  test(`estimate of ${family} on ${ranks} of ${precision} ${by} is what is in use, to the byte`, OPTIONS, async () => {
    const [{ hfConfig } = assert.fail()] = zooModels(family);
    await requireExpected({ ranks, hfConfig, config: { ...SHARDED, cudaGraphs, precision } });
  });
}
