/** Shards, gradients and optimizer states in host memory: the same bits, what memory holds, and everything that reads them. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import {
  AdamW,
  bfloat16,
  clipGradNorm,
  cpuOffloadPolicy,
  dryRun,
  float32,
  fullyShard,
  type FullyShardOptions,
  gradNorm,
  scope,
  SGD,
} from "../../mod.ts";
import { ConfigError } from "../../doors/errors.ts";
import type { RunConfig } from "../../doors/config.ts";
import { initializeParameters, zeros } from "../../doors/nn.ts";
import { casesOf, hybridCasesOf, type ParityCase } from "../../scripts/parity/traces.ts";
import { copyAcross } from "../../src/device/offload.ts";
import { estimateStep } from "../../src/train/estimate.ts";
import { ownedValues } from "../support/owned.ts";
import { longTest, onlyInAll, sharedTest as it, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { trainAlike } from "../support/parity.ts";
import { valuesOf, world } from "../support/world.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { measureMemory, runConfig } from "./memory_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { saveAndLoadOffloaded } from "./offload_ranks.ts";
import { openRank } from "./run.ts";

const offloadPolicy = cpuOffloadPolicy();

/** Some steps of a stack; what is left of them. */
async function train(options: Partial<FullyShardOptions>) {
  const { device, group } = await openRank();
  const model = new Stack(device, WIDTH, 2);
  const units = [...model.layers, model].map((module) => fullyShard(module, { mesh: group, ...options }));
  initializeParameters(model, 5);
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-2 });
  const seen: unknown[] = [];
  for (let step = 0; step < 3; step++) {
    using _frame = scope();
    optimizer.zeroGrad();
    for (const micro of ["a", "b"]) {
      for (const unit of units) unit.setRequiresGradientSync(step === 1 || micro === "b", { recurse: false });
      model.call(input(device, `${micro} ${step}`, 3, WIDTH)).sum().backward();
    }
    const norm = clipGradNorm(model.parameters(), 0.5).item();
    seen.push(norm, gradNorm(model.parameters()).item(), [...gradients(model.parameters())]);
    optimizer.step();
  }
  const weights = [...model.parameters()].map((parameter) => [...ownedValues(parameter)]);
  return { seen, weights, device, model, optimizer, units };
}

describe("cpuOffloadPolicy()", () => {
  it("pins memory unless told otherwise", () => {
    assert.deepEqual(offloadPolicy, { kind: "cpu", pinMemory: true, optimizerStates: undefined });
    assert.equal(cpuOffloadPolicy({ pinMemory: false }).pinMemory, false);
  });
});

describe("fullyShard() with offloadPolicy", () => {
  const precision = { paramDtype: bfloat16, reduceDtype: float32 };
  const variants: readonly Partial<FullyShardOptions>[] = [
    {},
    { reshardAfterForward: false },
    { backwardPrefetch: true },
    { precision },
    { shardPlacement: ({ ndim }) => ndim === 2 ? 1 : undefined },
    {
      gatherExtension: ({ ndim }) =>
        ndim === 2
          ? {
            preAllGather: (shard) => ({ inputs: [shard.mul(2)], metadata: undefined }),
            postAllGather([all], _metadata, out) {
              assert.ok(all !== undefined);
              out.device.kernels.scale({ dtype: float32, n: out.numel, factor: 0.5, dst: out.ptr, src: all.ptr });
            },
          }
          : undefined,
    },
  ];
  for (const [i, options] of variants.entries()) {
    it(`trains, accumulates and clips to the same bits, on the host: ${i} ${JSON.stringify(options)}`, async () => {
      const [plain, offloaded] = [await train(options), await train({ ...options, offloadPolicy })];
      assert.deepEqual(offloaded.seen, plain.seen);
      assert.deepEqual(offloaded.weights, plain.weights);
      const { device, model, optimizer, units } = offloaded;
      const pool = device.offload.device;
      for (const { grad, storage: { flatShard }, device: computed } of model.parameters()) {
        assert.equal(grad?.device, pool);
        assert.equal(flatShard.device, pool);
        assert.equal(computed, device);
      }
      assert.equal(device.allocator.owners(100).some(({ owner }) => owner.includes("optimizer exp")), false);
      const shards = [...model.parameters()].reduce((sum, { storage }) => sum + storage.shard.numel, 0);
      assert.ok(pool.allocator.stats.inUse >= 4 * 4 * shards, "weights, gradients and two states");
      model.zeroGrad();
      optimizer.dispose();
      for (const unit of units) unit.dispose();
      assert.equal(pool.allocator.stats.inUse, 0);
      assert.equal(device.allocator.owners(100).some(({ owner }) => owner.includes("layers")), false);
    });
  }

  it("takes values that parameters have already, and steps of plain and offloaded ones by one optimizer", async () => {
    const { device, group } = await openRank();
    const [model, twin] = [new Stack(device, WIDTH, 2), new Stack(device, WIDTH, 2)];
    for (const one of [model, twin]) {
      one.nameTree();
      initializeParameters(one, 5);
      for (const [i, layer] of one.layers.entries()) {
        fullyShard(layer, { mesh: group, ...one === model && i === 0 ? { offloadPolicy } : {} });
      }
      fullyShard(one, { mesh: group });
      const optimizer = new SGD(one.parameters(), { learningRate: 0.1 });
      for (let step = 0; step < 2; step++) {
        using _frame = scope();
        optimizer.zeroGrad();
        one.call(input(device, "x", 3, WIDTH)).sum().backward();
        clipGradNorm(one.parameters(), 0.1);
        optimizer.step();
      }
    }
    assert.deepEqual(gradients(model.parameters()), gradients(twin.parameters()));
    assert.notEqual(model.layers[0]?.linear.weight.grad?.device, model.layers[1]?.linear.weight.grad?.device);
  });

  it("keeps all from a step on the host as well where a norm is not finite", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    fullyShard(model, { mesh: group, offloadPolicy });
    initializeParameters(model, 5);
    const optimizer = new AdamW(model.parameters());
    const step = (value: number): void => {
      using _frame = scope();
      optimizer.zeroGrad();
      model.call(input(device, "x", 3, WIDTH)).sum().mul(value).backward();
      try {
        clipGradNorm(model.parameters(), 1, { errorIfNonfinite: true });
      } finally {
        optimizer.step();
      }
    };
    step(1);
    const { linear: { weight } } = model.layers[0] ?? assert.fail();
    assert.equal(optimizer.stepsOf(weight), 1);
    assert.throws(() => step(Infinity), /norm is (Infinity|NaN)/);
    assert.equal(optimizer.stepsOf(weight), 1);
    step(1);
    assert.equal(optimizer.stepsOf(weight), 2);
  });

  const groups = [
    ...[1, 2, 3].map((ranks) => casesOf(ranks, { tied: ranks !== 2, steps: 2 })),
    casesOf(2, { tied: true, steps: 2, precision: { paramDtype: "bfloat16", reduceDtype: "float32" } }),
    hybridCasesOf(2, 1, { tied: true, steps: 2 }).slice(1),
  ];
  for (const [reference, ...others] of usualFirst(groups, (place) => place === 3)) {
    assert.ok(reference !== undefined);
    it(`trains to the bits of ${reference.name} without it`, { timeout: 240_000 }, async () => {
      const cases = [reference, ...others].filter(({ ranks, training: { mode } }) =>
        ranks === reference.ranks && mode.startsWith("fsdp")
      );
      assert.ok(cases.length >= 2);
      const offloaded = cases.map((one, i): ParityCase => {
        const choices = { offload: i === 1 ? "file" : "host", checkpointing: i % 2 === 0 ? {} : undefined } as const;
        return { ...one, training: { ...one.training, ...choices } };
      });
      await trainAlike([reference, ...offloaded]);
    });
  }

  longTest("is saved by shards, and loaded with and without", { timeout: 120_000 }, async () => {
    using folder = temporaryDirectory();
    const options = { memoryBytes: 2 ** 27, data: folder.path };
    for (const { same, resumed } of valuesOf(await world(2, saveAndLoadOffloaded, options))) {
      assert.ok(same, "what was loaded is what was saved");
      assert.ok(resumed, "training goes on to the same bits");
    }
  });
});

const hfConfig = {
  model_type: "llama",
  vocab_size: 96,
  hidden_size: 32,
  intermediate_size: 88,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 16,
};
const sizes = { sequenceLength: 16, globalBatch: 4 };

describe("cpuOffload", () => {
  it("takes the shards' terms off the device's peak and counts them by themselves", async () => {
    const estimateOf = async (part: Partial<RunConfig>) =>
      await estimateStep(await runConfig({ ...sizes, ...part }), hfConfig, { worldSize: 4 });
    for (const policy of [{}, { precision: "bfloat16" }, { reshardAfterForward: false, microBatches: 1 }] as const) {
      const [plain, offloaded] = [await estimateOf(policy), await estimateOf({ ...policy, cpuOffload: true })];
      assert.equal(plain.offloaded.peakBytes, 0);
      const { terms } = offloaded;
      assert.ok(terms.parameters < plain.terms.parameters / 10, "buffers only");
      assert.ok(offloaded.peakBytes < plain.peakBytes);
      const host = offloaded.offloaded;
      assert.equal(Object.values(host.terms).reduce((sum, bytes) => sum + bytes, 0), host.peakBytes);
      assert.ok(host.terms.parameters > 0 && host.terms["gradient shards"] > 0 && host.terms.optimizer > 0);
      assert.equal(host.terms.gathered + host.terms.gradients + host.terms.staging, 0);
    }
  });

  it("counts a file of optimizer states by itself, which one unit's at a time leave for host memory", async () => {
    const estimateOf = async (part: Partial<RunConfig>) =>
      await estimateStep(await runConfig({ ...sizes, cpuOffload: true, ...part }), hfConfig, { worldSize: 4 });
    const [host, file] = [await estimateOf({}), await estimateOf({ offloadStates: "/nowhere" })];
    assert.equal(host.stateFileBytes, 0);
    assert.ok(file.stateFileBytes > 0 && file.stateFileBytes <= host.offloaded.terms.optimizer);
    assert.ok(file.offloaded.peakBytes < host.offloaded.peakBytes);
    assert.equal(file.peakBytes, host.peakBytes);
    assert.match(
      await estimateOf({ cpuOffload: false, offloadStates: "/nowhere" }).then(() => "", String),
      /offloadStates: expected cpuOffload to be set too, got '\/nowhere' without it; set cpuOffload, or remove offloadStates/,
    );
  });

  it("is refused with replicas", async () => {
    const error: unknown = await estimateStep(
      await runConfig({ ...sizes, strategy: "ddp", cpuOffload: true }),
      hfConfig,
      { worldSize: 2 },
    ).then(() => undefined, (error) => error);
    assert.ok(error instanceof ConfigError);
    assert.match(
      error.message,
      /cpuOffload: expected strategy fsdp, got 'ddp', which cannot offload; use/,
    );
  });

  for (const over of onlyInAll(["shm", "loopback"] as const)) {
    it(`has the peaks that are told over ${over}, to the byte, on both memories`, { timeout: 120_000 }, async () => {
      const policies = [{}, { precision: "bfloat16" }, { activationCheckpointing: "full", microBatches: 2 }] as const;
      for (const part of policies) {
        const data = { hfConfig, config: { ...sizes, ...part, cpuOffload: true, stagingBytes: 2 ** 20 }, steps: 2 };
        const options = { over, planes: { stagingBytes: 2 ** 20, timeoutSeconds: 60 }, memoryBytes: 2 ** 28 };
        for (const { expected, measured } of valuesOf(await world(2, measureMemory, { ...options, data }))) {
          assert.deepEqual(measured, expected);
          assert.ok(measured.offloaded.peakBytes > 0);
        }
      }
    });
  }

  it("orders copies by events where the device is dry", async () => {
    const { collectives, offloaded } = await dryRun(({ device, mesh }) => {
      const model = new Stack(device, WIDTH, 3);
      for (const module of [...model.layers, model]) {
        fullyShard(module, { mesh, offloadPolicy, backwardPrefetch: true, precision: { paramDtype: bfloat16 } });
      }
      initializeParameters(model, 0);
      const optimizer = new AdamW(model.parameters());
      return () => {
        using _step = scope();
        optimizer.zeroGrad();
        model.call(zeros(device, [1, WIDTH])).sum().backward();
        clipGradNorm(model.parameters(), 1);
        optimizer.step();
      };
    }, { worldSize: 8 });
    assert.equal(collectives.filter(({ kind }) => kind === "all-gather").length, 3 + 3 + 1);
    assert.equal(collectives.filter(({ kind }) => kind === "gather").length, 0, "no peer reads host memory");
    assert.ok(offloaded.peakBytes > 0);
  });
});

describe("copyAcross()", () => {
  it("copies more than a piece, and nothing", async () => {
    const { device } = await openRank();
    const pool = device.offload.device;
    const n = 2 ** 20 + 77;
    const values = Uint8Array.from({ length: n }, (_, i) => i * 31 % 251);
    const [a, b, c] = [device, pool, device].map(({ allocator }) => allocator.allocate(n, "bytes"));
    assert.ok(a !== undefined && b !== undefined && c !== undefined);
    device.copyIn(a, values);
    copyAcross({ device: pool, ptr: b }, { device, ptr: a }, n);
    copyAcross({ device, ptr: c }, { device: pool, ptr: b }, n);
    copyAcross({ device, ptr: c }, { device: pool, ptr: a }, 0);
    const back = new Uint8Array(n);
    device.copyOut(back, c);
    assert.deepEqual(back, values);
  });
});
