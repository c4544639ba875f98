/** Settings with which a run with CUDA graphs is refused before it begins, and families whose steps are captured. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import type { DeviceGraphs } from "../../src/device/graphs.ts";
import { ConfigError } from "../../src/errors.ts";
import { Trace } from "../../src/runtime/trace.ts";
import { requireGraphs } from "../../src/train/checks.ts";
import { estimateStep } from "../../src/train/estimate.ts";
import { runConfig } from "../fsdp/memory_scenario.ts";

const graphs: DeviceGraphs = {
  rehearse: (work) => ({ value: work(), bytes: 0 }),
  capture: () => assert.fail("nothing is captured"),
  setFirstSample: () => {},
};
const CARD = { name: "cuda:0", traits: { graphs, trace: undefined } };
const traced = { graphs, trace: new Trace() };
const none = { graphs: undefined, trace: undefined };
const ASKED = { cudaGraphs: true, cpuOffload: false };
const [ALONE, BY_NCCL, STAGED] = [
  { size: 1, kind: "loopback", isEnqueued: false },
  { size: 2, kind: "nccl", isEnqueued: true },
  { size: 2, kind: "shm", isEnqueued: false },
];

test("requireGraphs() refuses by key what a graph cannot hold", () => {
  requireGraphs({ cudaGraphs: false, cpuOffload: true }, { ...CARD, traits: none }, STAGED);
  requireGraphs(ASKED, CARD, ALONE);
  requireGraphs(ASKED, CARD, BY_NCCL);
  const refused: readonly (readonly [run: () => void, paths: readonly string[], said: RegExp])[] = [
    [
      () => requireGraphs(ASKED, { name: "cpu:0", traits: none }, STAGED),
      ["cudaGraphs"],
      /expected device cuda, got 'cpu:0', which has no graphs/,
    ],
    [
      () => requireGraphs({ ...ASKED, cpuOffload: true }, { ...CARD, traits: traced }, BY_NCCL),
      ["trace", "cpuOffload"],
      /cpuOffload: expected false with cudaGraphs, got true: offloaded parameters are updated by the host/,
    ],
    [
      () => requireGraphs(ASKED, CARD, STAGED),
      ["cudaGraphs"],
      /expected ranks joined by 'nccl', a card each, got ranks joined by 'shm', which goes through memory of the host/,
    ],
  ];
  for (const [run, paths, said] of refused) {
    assert.throws(run, (error) => {
      assert.ok(error instanceof ConfigError);
      assert.deepEqual(error.problems.map(({ path }) => path), paths);
      assert.match(error.message, said);
      return true;
    });
  }
});

const ZOO = new URL("../fixtures/zoo/", import.meta.url);
for (const file of readdirSync(ZOO)) {
  test(`a step of ${file.replace(".json", "")} copies nothing from the host once it is captured`, async () => {
    const hfConfig: Readonly<Record<string, unknown>> = JSON.parse(readFileSync(new URL(file, ZOO), "utf8"));
    const config = await runConfig({ globalBatch: 2, sequenceLength: 8, cudaGraphs: true });
    const world = { worldSize: 2, standsFor: "nccl", cpuMath: "wasm" } as const;
    const [by, without] = [
      await estimateStep(config, hfConfig, world),
      await estimateStep({ ...config, cudaGraphs: false }, hfConfig, world),
    ];
    assert.deepEqual([by.flops, by.collectives], [without.flops, without.collectives]);
    assert.equal(by.terms.optimizer, without.terms.optimizer);
  });
}

test("noise on embeddings and averages of weights are captured too", async () => {
  const hfConfig: Readonly<Record<string, unknown>> = JSON.parse(readFileSync(new URL("llama.json", ZOO), "utf8"));
  const more = { neftuneNoiseAlpha: 5, emaDecay: 0.9, emaStart: 9, packing: "bfd" } as const;
  const config = { ...await runConfig({ globalBatch: 2, sequenceLength: 8, cudaGraphs: true }), ...more };
  const world = { worldSize: 2, standsFor: "nccl", cpuMath: "wasm" } as const;
  const [by, without] = [
    await estimateStep(config, hfConfig, world),
    await estimateStep({ ...config, cudaGraphs: false }, hfConfig, world),
  ];
  assert.deepEqual([by.flops, by.collectives], [without.flops, without.collectives]);
  assert.equal(by.terms.optimizer, without.terms.optimizer);
});
