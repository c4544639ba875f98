/** Activation checkpointing with units: what is gathered, the same bits in every mode, and the memory that it saves. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import {
  type ActivationCheckpointingOptions,
  applyActivationCheckpointing,
  dryRun,
  fullyShard,
  type FullyShardOptions,
  scope,
  type Tensor,
} from "../../mod.ts";
import { openDevice } from "../../doors/device.ts";
import { ConfigError } from "../../doors/errors.ts";
import type { RunConfig } from "../../doors/config.ts";
import { initializeParameters, Module, SAVEABLE_OPS, zeros } from "../../doors/nn.ts";
import { casesOf, hybridCasesOf } from "../../scripts/parity/traces.ts";
import { estimateStep, type StepEstimate } from "../../src/train/estimate.ts";
import { messageOf } from "../support/message.ts";
import { trainAlike } from "../support/parity.ts";
import { longTest, sharedTest as it, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { measureMemory, runConfig } from "./memory_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

/** The gathers and reductions of a step, as events beside the forwards of the layers: `gather 0 backward`, `run 0`. */
async function record(
  sharding: Partial<FullyShardOptions>,
  checkpointing: ActivationCheckpointingOptions | undefined,
  chooses: (model: Stack) => readonly Module[] = ({ layers }) => layers,
): Promise<{ readonly events: readonly string[]; readonly bits: ReadonlyMap<string, number[] | undefined> }> {
  const events: string[] = [];
  const { device, group } = await openRank();
  group.observe(({ kind, unit, phase }) => {
    const place = /layers\.(\d+)/.exec(unit)?.[1] ?? "root";
    if (kind === "gather") events.push(`gather ${place} ${phase}`);
    if (kind === "reduce-scatter") events.push(`reduce ${place}`);
  });
  const model = new Stack(device, WIDTH, 4);
  if (checkpointing !== undefined) applyActivationCheckpointing(chooses(model), checkpointing);
  const units = model.layers.map((layer) => fullyShard(layer, { mesh: group, ...sharding }));
  const root = fullyShard(model, { mesh: group, ...sharding });
  initializeParameters(model, 5);
  for (const [i, { linear }] of model.layers.entries()) {
    linear.registerForwardPreHook(() => void events.push(`run ${i}`));
  }
  events.length = 0;
  using _frame = scope();
  model.call(input(device, "x", 2, WIDTH)).sum().backward();
  assert.ok([...units, root].every(({ unit }) => !unit.unsharded));
  return { events, bits: gradients(model.parameters()) };
}

const isGather = (event: string): boolean => event.startsWith("gather") || event.startsWith("reduce");

/** Modules in sequence, which are recomputed together. */
class Chain extends Module<[x: Tensor], Tensor> {
  readonly layers: readonly Module<[x: Tensor], Tensor>[];

  constructor(layers: readonly Module<[x: Tensor], Tensor>[]) {
    super();
    this.layers = layers;
  }

  forward(x: Tensor): Tensor {
    return this.layers.reduce((hidden, layer) => layer.call(hidden), x);
  }
}

const checkpointings: readonly ActivationCheckpointingOptions[] = [{}, { every: 2 }, { saveOps: SAVEABLE_OPS }];

describe("applyActivationCheckpointing() of units", () => {
  for (const sharding of [{}, { reshardAfterForward: false }, { backwardPrefetch: true }]) {
    it(`gathers and reduces in the same order as without: ${JSON.stringify(sharding)}`, async () => {
      const plain = await record(sharding, undefined);
      for (const choice of checkpointings) {
        const { events, bits } = await record(sharding, choice);
        assert.deepEqual(events.filter(isGather), plain.events.filter(isGather));
        assert.deepEqual(bits, plain.bits);
        const runs = events.filter((event) => event === "run 1" || event === "run 2").length;
        assert.equal(runs, choice.every === 2 ? 3 : 4, "each checkpointed one once more");
      }
    });
  }

  it("computes a block again after its gather for the backward, and before the next one's", async () => {
    const { events } = await record({}, {});
    assert.deepEqual(events.slice(events.indexOf("gather 3 backward")), [
      ...[3, 2, 1, 0].flatMap((i) => [`gather ${i} backward`, `run ${i}`, `reduce ${i}`]),
      "reduce root",
    ]);
  });

  it("gathers each unit inside a checkpointed module once for its recomputation and its backward", async () => {
    for (const backwardPrefetch of [false, true]) {
      const { device, group, calls } = await openRank();
      const bits = [true, false].map((wraps) => {
        const { layers, head } = new Stack(device, WIDTH, 4);
        const pairs = [new Chain(layers.slice(0, 2)), new Chain(layers.slice(2))];
        const model = new Chain([...pairs, head]);
        if (wraps) applyActivationCheckpointing(pairs);
        for (const layer of layers) fullyShard(layer, { mesh: group, backwardPrefetch });
        fullyShard(model, { mesh: group });
        initializeParameters(model, 5);
        calls.length = 0;
        using _frame = scope();
        model.call(input(device, "x", 2, WIDTH)).sum().backward();
        const gathers = calls.filter(({ kind }) => kind === "gather").map(({ unit, phase }) => `${unit} ${phase}`);
        assert.equal(gathers.length, 9);
        assert.equal(new Set(gathers).size, 9, "no unit twice in a phase");
        return gradients(model.parameters());
      });
      assert.deepEqual(bits[0], bits[1]);
    }
  });

  it("gathers a unit whose backward needs no parameters for its recomputation", async () => {
    const { device, group, calls } = await openRank();
    const { layers } = new Stack(device, WIDTH, 2);
    const model = new Chain(layers);
    applyActivationCheckpointing(model);
    const units = layers.map((layer) => fullyShard(layer, { mesh: group, reshardAfterForward: true }));
    for (const unit of units) unit.setUnshardInBackward(false);
    initializeParameters(model, 5);
    calls.length = 0;
    using _frame = scope();
    model.call(input(device, "x", 2, WIDTH)).sum().backward();
    assert.equal(calls.filter(({ kind }) => kind === "gather").length, 4);
    assert.ok(units.every(({ unit }) => !unit.unsharded));
  });

  const groups = [
    ...[1, 2, 3].map((ranks) => casesOf(ranks, { tied: ranks !== 2, steps: 2 })),
    casesOf(2, { tied: false, steps: 3, skips: true }),
    casesOf(2, { tied: true, steps: 2, precision: { paramDtype: "bfloat16", reduceDtype: "float32" } }),
    hybridCasesOf(2, 1, { tied: true, steps: 2 }).slice(1),
  ];
  for (const [reference, ...others] of usualFirst(groups, (place) => place === 2 || place === 4)) {
    assert.ok(reference !== undefined);
    it(`trains to the bits of ${reference.name} without it`, { timeout: 240_000 }, async () => {
      const chosen = [reference, ...others.filter(({ ranks }) => ranks === reference.ranks)];
      const checkpointed = chosen.map((one, i) => {
        const checkpointing = checkpointings[i % checkpointings.length];
        return { ...one, training: { ...one.training, checkpointing } };
      });
      await trainAlike([reference, ...checkpointed]);
    });
  }
});

const hfConfig = {
  model_type: "llama",
  vocab_size: 96,
  hidden_size: 32,
  intermediate_size: 88,
  num_hidden_layers: 6,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 64,
};
const sizes = { sequenceLength: 64, globalBatch: 4 };

describe("activationCheckpointing", () => {
  const estimateOf = async (part: Partial<RunConfig>) => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
    return await estimateStep(await runConfig({ ...sizes, ...part }), hfConfig, { worldSize: 2, device });
  };

  longTest("lowers the peak's activations, block by block, and leaves shards and all collectives", async () => {
    const modes = [
      {},
      { activationCheckpointing: "selective" },
      { activationCheckpointing: "full", activationCheckpointingEvery: 2 },
      { activationCheckpointing: "full" },
    ] as const;
    for (
      const policy of [{}, { reshardAfterForward: false }, { strategy: "ddp" }, { precision: "bfloat16" }] as const
    ) {
      const runs: StepEstimate[] = [];
      for (const mode of modes) runs.push(await estimateOf({ ...policy, ...mode }));
      const [none, selective, second, full] = runs;
      assert.ok(none !== undefined && selective !== undefined && second !== undefined && full !== undefined);
      const activations = runs.map(({ terms }) => terms.activations);
      assert.deepEqual(activations, activations.toSorted((a, b) => b - a), JSON.stringify(policy));
      assert.equal(new Set(activations).size, 4);
      for (const run of runs) {
        // More was computed before a call where blocks are recomputed.
        const calls = ({ collectives }: StepEstimate): object[] =>
          collectives.map((call) => ({ ...call, flopsBefore: 0 }));
        assert.deepEqual(calls(run), calls(none));
        const { parameters, optimizer } = run.terms;
        assert.deepEqual([parameters, optimizer], [none.terms.parameters, none.terms.optimizer]);
        assert.ok(run.flops >= none.flops && run.flops <= full.flops);
      }
    }
  });

  it("is what gradientCheckpointing asks for as well, and not both", async () => {
    const [a, b] = [
      await estimateOf({ activationCheckpointing: "full" }),
      await estimateOf({ gradientCheckpointing: true }),
    ];
    assert.deepEqual(a, b);
    const refused = async (part: Partial<RunConfig>): Promise<string> => {
      const error: unknown = await estimateOf(part).then(() => undefined, (error) => error);
      return error instanceof ConfigError ? error.message : assert.fail(String(error));
    };
    assert.match(
      await refused({ activationCheckpointing: "selective", gradientCheckpointing: true }),
      /gradientCheckpointing: expected activationCheckpointing or gradientCheckpointing, not both, got true, and activationCheckpointing 'selective'/,
    );
    assert.match(
      await refused({ activationCheckpointingEvery: 2 }),
      /activationCheckpointingEvery: expected activationCheckpointing full or selective to be set too, got 2 without it/,
    );
  });

  for (
    const [name, part] of Object.entries<Partial<RunConfig>>({
      "full, FSDP": { activationCheckpointing: "full" },
      "selective, FSDP, kept": { activationCheckpointing: "selective", reshardAfterForward: false },
      "every second block, DDP, two micro-batches": {
        ...{ activationCheckpointing: "full", activationCheckpointingEvery: 2, strategy: "ddp", microBatches: 2 },
      },
      "full, bfloat16": { activationCheckpointing: "full", precision: "bfloat16" },
    })
  ) {
    it(`has the peak that is told, to the byte: ${name}`, { timeout: 120_000 }, async () => {
      const data = { hfConfig, config: { ...sizes, ...part, stagingBytes: 2 ** 20 }, steps: 2 };
      const options = { planes: { stagingBytes: 2 ** 20, timeoutSeconds: 60 }, memoryBytes: 2 ** 28 };
      for (const { expected, measured } of valuesOf(await world(2, measureMemory, { ...options, data }))) {
        assert.deepEqual(measured, expected);
      }
    });
  }

  it("composes with prefetch of the backward without a second gather, as the dry run counts", async () => {
    const gathers = async (checkpoints: boolean, backwardPrefetch: boolean): Promise<readonly string[]> => {
      const run = await dryRun(({ device, mesh }) => {
        const model = new Stack(device, 64, 8);
        if (checkpoints) applyActivationCheckpointing(model.layers);
        for (const layer of model.layers) fullyShard(layer, { mesh, backwardPrefetch });
        fullyShard(model, { mesh });
        initializeParameters(model, 0);
        return () => {
          using _step = scope();
          model.zeroGrad();
          model.call(zeros(device, [1, 64])).sum().backward();
        };
      }, { worldSize: 8 });
      return run.collectives.filter(({ kind }) => kind === "gather").map(({ unit, phase }) => `${unit} ${phase}`);
    };
    for (const prefetch of [false, true]) {
      assert.deepEqual(await gathers(true, prefetch), await gathers(false, prefetch));
    }
    assert.equal((await gathers(true, true)).length, 8 + 8 + 1);
  });

  it("tells an error of the recomputation with the block's name", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    applyActivationCheckpointing(model.layers);
    for (const layer of model.layers) fullyShard(layer, { mesh: group });
    const root = fullyShard(model, { mesh: group });
    initializeParameters(model, 5);
    const before = device.allocator.stats.inUse;
    let isBroken = false;
    const [layer] = model.layers;
    assert.ok(layer !== undefined);
    const forward = layer.forward.bind(layer);
    layer.forward = (x) => isBroken ? forward(x).exp() : forward(x);
    {
      using _frame = scope();
      const loss = model.call(input(device, "x", 2, WIDTH)).sum();
      isBroken = true;
      assert.match(messageOf(() => loss.backward()), /the activations of 'layers\.0' again/);
    }
    assert.equal(device.allocator.stats.inUse, before);
    assert.ok(root.units().every(({ unsharded }) => !unsharded));
  });
});
