/** The optimizer step, on one rank and on two. @module */
import assert from "node:assert/strict";
import { AdamW, type Batch, float16, fullyShard, GradScaler } from "../../mod.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { type StepContext, trainStep } from "../../doors/config.ts";
import { type Allocator, type DevicePtr, openDevice } from "../../doors/device.ts";
import { OutOfMemoryError } from "../../doors/errors.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { runLoopback } from "../../src/comm/loopback_workers.ts";
import { IGNORE_INDEX } from "../../src/nn/functional.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import type { Orders, Sample, Told } from "./step_rank.ts";

async function runSteps(world: number, orders: Orders): Promise<Told[]> {
  const told = await runLoopback(world, new URL("./step_rank.ts", import.meta.url), orders);
  return told.filter((one): one is Told => typeof one === "object" && one !== null && "losses" in one);
}

/** A sample of 8 tokens of which the last `ignored` count for nothing. */
function sample(seed: number, ignored: number): Sample {
  const ids = Array.from({ length: 8 }, (_, i) => (seed * 7 + i * i * 3) % 32);
  return { ids, labels: ids.map((id, i) => i < 8 - ignored ? (id + 5) % 32 : IGNORE_INDEX) };
}

function close(actual: number | undefined, expected: number | undefined, what: string): void {
  const [a, b] = [actual ?? NaN, expected ?? NaN];
  assert.ok(Math.abs(a - b) <= 1e-5 * Math.abs(b), `${what}: ${a} is not ${b}`);
}

// Ranks and micro-batches with 8, 1, 5 and 0 tokens that count.
const uneven = [[[sample(1, 0)], [sample(2, 7)]], [[sample(3, 3)], [sample(4, 8)]]];

test("trainStep() weights every token alike, however ranks and micro-batches divide them", async () => {
  const [split, other] = await runSteps(2, { batches: uneven, steps: 3 });
  const [whole] = await runSteps(1, { batches: [[uneven.flat(2)]], steps: 3 });
  assert.deepEqual(split?.tokens, [14, 14, 14]);
  assert.deepEqual(whole?.tokens, [14, 14, 14]);
  assert.deepEqual(other?.losses, split?.losses, "ranks told different losses");
  assert.deepEqual(other?.gradNorms, split?.gradNorms, "ranks told different norms");
  for (const [i, loss] of (whole?.losses ?? []).entries()) {
    close(split?.losses[i], loss, `loss of step ${i + 1}`);
    close(split?.gradNorms[i], whole?.gradNorms[i], `norm of step ${i + 1}`);
  }
  assert.equal(whole?.losses.length, 3);
});

test("trainStep() is not changed by a sample whose labels are all ignored", async () => {
  const [withIt] = await runSteps(1, { batches: [[[sample(1, 0)], [sample(4, 8)]]], steps: 2 });
  const [without] = await runSteps(1, { batches: [[[sample(1, 0)]]], steps: 2 });
  assert.deepEqual(withIt?.losses, without?.losses);
  assert.deepEqual(withIt?.gradNorms, without?.gradNorms);
});

test("trainStep() with no label at all has no loss and no gradient", async () => {
  const [told] = await runSteps(1, { batches: [[[sample(1, 8)]]], steps: 1 });
  assert.equal(told?.error, "");
  assert.deepEqual([told?.losses, told?.gradNorms, told?.tokens], [[0], [0], [0]]);
});

for (const world of [1, 2]) {
  test(`trainStep() on ${world} ranks stops at a weight that is NaN, names it and updates nothing`, async () => {
    const batches = [[[sample(1, 0)]], [[sample(2, 0)]]];
    const name = "model.layers.1.mlp.down_proj.weight";
    const told = await runSteps(world, { batches, steps: 1, poison: name });
    assert.equal(told.length, world);
    for (const { error, before, after } of told) {
      assert.match(
        error,
        /^NonFiniteError: Loss is NaN at step 1: the weights of '(.*)' are the first that are not finite/,
      );
      assert.ok(error.includes(`'${name}'`), error);
      assert.deepEqual(after, before);
    }
    assert.ok(told.some(({ before }) => before.some(Number.isNaN)), "nothing was poisoned");
  });
}

longTest("trainStep() that fails before any update advises what can help then", async () => {
  const orders = { batches: [[[sample(1, 0)]]], steps: 1, poison: "model.layers.1.mlp.down_proj.weight" };
  const [nan] = await runSteps(1, orders);
  assert.match(
    nan?.error ?? "",
    /No step has changed them: check the weights file, or initializer_range$/,
  );
  // A finite weight that float16 does not hold: float32 trains with it.
  const [wide] = await runSteps(1, { ...orders, poisonValue: 1e5 });
  assert.equal(wide?.error, "");
  const [narrow] = await runSteps(1, { ...orders, poisonValue: 1e5, initScale: 1 });
  assert.match(
    narrow?.error ?? "",
    /^NonFiniteError: Loss is (NaN|Infinity) at step 1: .* float16 ends at 65504: compute in bfloat16, .*'--precision bfloat16'\), or in float32$/,
  );
});

test("trainStep() leaves no memory in use that the first step did not", async () => {
  for (const { inUse } of await runSteps(2, { batches: uneven, steps: 6 })) {
    assert.equal(inUse.at(-1), inUse[0]);
  }
});

longTest(
  "trainStep() in float16 has the loss and the norm of float32, and skips steps until the loss scale fits",
  async () => {
    const wide = await runSteps(2, { batches: uneven, steps: 3 });
    const narrow = await runSteps(2, { batches: uneven, steps: 3, initScale: 65536 });
    for (const [rank, { losses, gradNorms, error }] of narrow.entries()) {
      assert.equal(error, "");
      for (const [i, loss] of (wide[rank]?.losses ?? []).entries()) {
        const [own, ownNorm, norm] = [losses[i] ?? NaN, gradNorms[i] ?? NaN, wide[rank]?.gradNorms[i] ?? NaN];
        assert.ok(
          own !== loss && Math.abs(own - loss) <= 2e-3 * loss,
          `loss of step ${i + 1}: ${own} is not near ${loss}`,
        );
        assert.ok(Math.abs(ownNorm - norm) <= 1e-2 * norm, `norm of step ${i + 1}: ${ownNorm} is not near ${norm}`);
      }
    }
    const late = await runSteps(2, { batches: uneven, steps: 8, initScale: 2 ** 19 });
    for (const { losses, gradNorms, error } of late) {
      assert.equal(error, "");
      const first = gradNorms.findIndex(Number.isFinite);
      assert.ok(first > 0 && first < 7, `norms ${gradNorms}`);
      assert.ok(losses.slice(0, first).every((loss) => loss === losses[0]), "a step that overflowed changes nothing");
      assert.equal(gradNorms[first], narrow[0]?.gradNorms[0]);
      assert.notEqual(losses[first + 1], losses[0]);
    }
  },
);

const SMALL = {
  ...{ model_type: "llama", vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1 },
  ...{ num_attention_heads: 2, max_position_embeddings: 12, rms_norm_eps: 1e-6, initializer_range: 0.2 },
};

/** Allocates memory until at most this many bytes are free. */
function takeAllBut(room: number, allocator: Allocator): DevicePtr[] {
  const pieces: DevicePtr[] = [];
  for (let size = 2 ** 23; size >= 256;) {
    const { capacity, inUse } = allocator.stats;
    try {
      if (capacity - inUse - room >= size) pieces.push(allocator.allocate(size, "the rest"));
      else size /= 2;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      size /= 2; // what is free lies in smaller pieces
    }
  }
  return pieces;
}

test("trainStep() in float16 that finds no memory, at whatever place, leaves the loss scale and the next steps as they were", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  const ids = Int32Array.from({ length: 8 }, (_, i) => (7 + i * i * 3) % 32);
  const batch: Batch = { microBatches: [{ inputIds: ids, labels: ids, batch: 1, seq: 8 }] };
  const { allocator } = device;
  using group = await openProcessGroup({ device });
  /** Two steps; the first is tried with more and more memory, until there is enough. */
  const train = (begins: number): { readonly steps: unknown[]; readonly scale: unknown; readonly failures: number } => {
    const model = buildModel(device, SMALL);
    fullyShard(model, { mesh: group, precision: { paramDtype: float16 } });
    initializeParameters(model, 7);
    const optimizer = new AdamW(model.parameters(), { learningRate: 0.01 });
    using scaler = new GradScaler(device, { initScale: 1024, growthInterval: 2 });
    const context: StepContext = { device, group, model, optimizer, maxGradNorm: 1, scaler };
    let failures = 0;
    for (let room = begins;; room += 1024) {
      const pieces = takeAllBut(room, allocator);
      try {
        const first = trainStep(context, batch, 1);
        for (const piece of pieces.splice(0)) allocator.free(piece);
        const steps = [first, trainStep(context, batch, 2)];
        const scale = scaler.state();
        optimizer.dispose();
        return { steps, scale, failures };
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        failures++;
      } finally {
        for (const piece of pieces) allocator.free(piece);
        optimizer.zeroGrad();
      }
    }
  };
  const expected = train(2 ** 22);
  const found = train(1024);
  assert.equal(expected.failures, 0);
  assert.ok(found.failures > 20, `${found.failures} failures`);
  assert.deepEqual([found.steps, found.scale], [expected.steps, expected.scale]);
  device.dispose();
});
