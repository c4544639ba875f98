/** Dry runs: what they tell, that the step of every policy is ordered, and that mistakes in its order are found. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { sharedTest as it } from "../support/share.ts";
import {
  AdamW,
  bfloat16,
  clipGradNorm,
  dryRun,
  float32,
  fullyShard,
  type FullyShardOptions,
  replicate,
  type Run,
} from "../../mod.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { FINISHED } from "../../src/comm/data_plane.ts";
import { devicePtr } from "../../src/device/device.ts";
import { backwardStep } from "../../src/train/backward.ts";

const hfConfig = {
  model_type: "llama",
  vocab_size: 96,
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 16,
};

const ids = new Int32Array(16);
const microBatch = { inputIds: ids, labels: ids, batch: 1, seq: 16 };

/** The settings that are tried. */
interface Policy extends Omit<FullyShardOptions, "mesh"> {
  readonly strategy?: "fsdp" | "ddp";
  readonly microBatches?: number;
  /** Copies of the shards. */
  readonly replicate?: number;
  /** Done in every step, before the forward. */
  readonly before?: (ranks: Run, first: ReturnType<typeof fullyShard>) => void;
}

/** A model and its step. */
function stepOf(
  ranks: Run,
  { strategy = "fsdp", microBatches = 1, before, replicate: copies, ...options }: Policy,
): () => void {
  const { device, group } = ranks;
  const mesh = copies === undefined ? ranks.mesh : deviceMesh(group, { replicate: copies, shard: group.size / copies });
  const model = buildModel(device, hfConfig);
  const units = strategy === "ddp"
    ? []
    : [...model.layers, model].map((unit) => fullyShard(unit, { mesh, ...options }));
  if (strategy === "ddp") replicate(model, { mesh });
  initializeParameters(model, 0);
  const optimizer = new AdamW(model.parameters());
  return () => {
    optimizer.zeroGrad();
    if (units[0] !== undefined) before?.(ranks, units[0]);
    using loss = backwardStep(model, { microBatches: new Array(microBatches).fill(microBatch) }, device, group).loss;
    using _norm = clipGradNorm(model.parameters(), 1);
    assert.equal(loss.item(), 0);
    optimizer.step();
  };
}

const byHand: Policy = {
  before(_ranks, first) {
    first.unshard();
    first.reshard();
    first.unshard(); // stays for the forward
  },
};
const precision = { paramDtype: bfloat16 };

describe("dryRun()", () => {
  const policies: readonly Policy[] = [
    {},
    { reshardAfterForward: false },
    { backwardPrefetch: true },
    { backwardPrefetch: true, reshardAfterForward: false },
    { precision },
    { precision: { paramDtype: bfloat16, reduceDtype: bfloat16 } },
    { precision, backwardPrefetch: true, microBatches: 2 },
    { microBatches: 3 },
    { microBatches: 2, reshardAfterForward: false },
    { strategy: "ddp" },
    { strategy: "ddp", microBatches: 2 },
    byHand,
    { ...byHand, reshardAfterForward: false, backwardPrefetch: true },
  ];
  const onEight: readonly Policy[] = [
    { reshardAfterForward: 2 },
    { reshardAfterForward: 4, backwardPrefetch: true, precision },
    { replicate: 2 },
    { replicate: 2, microBatches: 2, reshardAfterForward: 2 },
    { replicate: 8 },
    { shardPlacement: ({ ndim }) => ndim === 2 ? 1 : undefined, backwardPrefetch: true },
  ];
  const worlds = [[1, 0], [3, 2], [200, 7]] as const;
  const tries = [
    ...policies.map((policy) => [policy, worlds] as const),
    ...onEight.map((policy) => [policy, [[8, 5]]] as const),
  ];
  it("counts the memory of MPI for ranks of several CPU hosts, and shared memory for those of one", async () => {
    const take = (localWorldSize: number) => dryRun((run) => stepOf(run, {}), { worldSize: 8, localWorldSize });
    const [one, several] = [await take(8), await take(4)];
    assert.ok(one.terms.staging > 0);
    const mpi = await dryRun((run) => stepOf(run, {}), { worldSize: 8, localWorldSize: 4, standsFor: "mpi" });
    assert.deepEqual(several.terms, mpi.terms);
    assert.notEqual(several.terms.staging, one.terms.staging);
  });

  for (const [policy, places] of tries) {
    for (const [worldSize, rank] of places) {
      const { before, ...rest } = policy;
      const name = JSON.stringify(rest) + (before === undefined ? "" : ", by hand");
      it(`finds the step ordered, as rank ${rank} of ${worldSize}: ${name}`, async () => {
        const { peakBytes, terms, highest, flops, collectives } = await dryRun((ranks) => stepOf(ranks, policy), {
          worldSize,
          rank,
          cpuMath: "wasm",
        });
        assert.equal(Object.values(terms).reduce((sum, bytes) => sum + bytes, 0), peakBytes);
        assert.ok(highest >= peakBytes && flops > 0 && collectives.length > 0);
      });
    }
  }

  /** A step with a mistake. */
  const mistakes: readonly (readonly [name: string, seed: (ranks: Run) => () => void, message: RegExp])[] = [
    [
      "a gather that nobody waits for",
      (ranks) => {
        const { group } = ranks;
        const open = group.openWindow.bind(group);
        group.openWindow = (...args) => {
          const window = open(...args);
          const gather = window.gather.bind(window);
          window.gather = (...all) => (gather(...all), FINISHED);
          return window;
        };
        return stepOf(ranks, {});
      },
      /'embedding' on stream compute reads 'w' of 'LlamaForCausalLm gathered parameters', which 'gather .*' on stream gather writes as 'what is received', with no event between them: make compute wait/,
    ],
    [
      "a reduction that nobody waits for",
      (ranks) => {
        const { group } = ranks;
        const reduce = group.reduceScatter.bind(group);
        group.reduceScatter = (...args) => (reduce(...args), FINISHED);
        return stepOf(ranks, {});
      },
      /'sumPowers' on stream compute reads 'src' of 'LlamaForCausalLm gradient shard', which 'reduce-scatter' on stream reduce writes as 'what is received', with no event/,
    ],
    ["a use of parameters that were freed", (ranks) =>
      stepOf(ranks, {
        before({ device }, first) {
          first.unshard();
          const [weight] = first.modules[0]?.parameters() ?? [];
          const dst = weight?.ptr ?? assert.fail();
          first.reshard();
          device.kernels.fill({ dtype: float32, n: 4, value: 0, dst });
        },
      }), /'fill' writes 'dst' at \d+ to \d+, memory that was freed \('model\.layers\.0 gathered parameters'\)/],
    ["a use of memory beyond its end", (ranks) =>
      stepOf(ranks, {
        before({ device }) {
          const ptr = device.allocator.allocate(1024, "a kilobyte");
          device.copy(devicePtr(ptr + 512), ptr, 1024);
        },
      }), /'copy' writes 'dst' at \d+ to \d+, memory that was never given out/],
    [
      "memory that is freed before its consumer's event",
      (ranks) =>
        stepOf(ranks, {
          before({ device }, first) {
            first.unshard();
            const [weight] = first.modules[0]?.parameters() ?? [];
            const src = weight?.ptr ?? assert.fail();
            const gathered = device.streams.current.record();
            device.streams.on("copy", () => {
              device.streams.current.wait(gathered);
              device.copyOut(new Uint8Array(16), src);
            });
            first.reshard();
          },
        }),
      /'model\.layers\.0 gathered parameters' is freed on stream compute while 'copyOut' on stream copy reads it as 'src'/,
    ],
  ];
  for (const [name, seed, message] of mistakes) {
    it(`finds ${name}`, async () => {
      await assert.rejects(dryRun(seed, { worldSize: 4, cpuMath: "wasm" }), { name: "HazardError", message });
    });
  }

  it("measures the second of two steps, which may await, and closes the device that it opened", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
    const before = device.allocator.stats;
    let steps = 0;
    const { collectives, peakBytes, terms, highest, bytesCommunicated, flops } = await dryRun(async (ranks) => {
      await Promise.resolve();
      assert.deepEqual([ranks.group.rank, ranks.group.size, ranks.mesh.shape], [3, 4, [4]]);
      const { allocator } = ranks.device;
      const ptr = allocator.allocate(1024, "kept", "optimizer");
      return async () => {
        await Promise.resolve();
        const bytes = steps++ === 0 ? 2 ** 20 : 2 ** 16;
        const block = allocator.allocate(bytes, "block");
        ranks.group.broadcast(ptr, 1024, 0, `step ${steps}`).wait();
        ranks.group.allGather(block, ptr, 1024, "all", "manual").wait();
        ranks.group.allReduce(ptr, 256, float32, { unit: "sum" }).wait();
        ranks.group.send(ptr, 512, 0, "message").wait();
        ranks.group.barrier("no tensors");
        allocator.free(block);
      };
    }, { worldSize: 4, rank: 3, device, stagingBytes: 2 ** 18 });
    assert.equal(steps, 2);
    const where = { hosts: 1, flopsBefore: 0 };
    assert.deepEqual(collectives, [
      { kind: "broadcast", unit: "step 2", phase: undefined, bytes: 1024, received: 1024, ...where },
      { kind: "all-gather", unit: "all", phase: "manual", bytes: 4096, received: 3072, ...where },
      { kind: "all-reduce", unit: "sum", phase: undefined, bytes: 1024, received: 2 * 768, ...where },
      { kind: "send and receive", unit: "message", phase: undefined, bytes: 512, received: 512, ...where },
    ]);
    assert.equal(bytesCommunicated, 1024 + 3072 + 2 * 768 + 512);
    assert.equal(flops, 0);
    assert.equal(peakBytes, 2 ** 16 + 1024 + 2 ** 16);
    assert.deepEqual([terms.activations, terms.optimizer, terms.staging], [2 ** 16, 1024, 2 ** 16]);
    assert.ok(highest >= 2 ** 20 + 2 ** 18 + 1024 && highest < 2 ** 20 + 2 ** 18 + 8192, "the first step counts here");
    assert.deepEqual(device.allocator.stats, before);
    device.dispose();
  });

  it("tells the memory of all steps but the first, and the calls of the second", async () => {
    let taken = 0;
    const { collectives, peakBytes } = await dryRun(({ device: { allocator }, group }) => () => {
      const block = allocator.allocate([4096, 256, 1024, 512][taken++] ?? NaN, "block");
      group.broadcast(block, 256, 0, `step ${taken}`).wait();
      allocator.free(block);
    }, { worldSize: 2, steps: 4, standsFor: "nccl", cpuMath: "wasm" });
    assert.deepEqual([taken, peakBytes], [4, 1024]);
    assert.deepEqual(collectives.map(({ unit }) => unit), ["step 2"]);
  });

  it("refuses a rank that there is not", async () => {
    await assert.rejects(dryRun(() => () => {}, { worldSize: 2, rank: 2 }), /rank 2, which is not in a group of 2/);
  });
});
