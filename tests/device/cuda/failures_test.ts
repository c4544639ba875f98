/**
 * Steps that fail in the middle on a card, here a double: memory that runs out in a forward or a backward, a block that throws, a fault
 * of a kernel. Each is one clear error, nothing of the step is left, and the next steps are those of a training that never failed.
 *
 * @module
 */
import assert from "node:assert/strict";
import { openProcessGroup } from "../../../src/comm/registry.ts";
import { openCudaDevice } from "../../../src/device/cuda/device.ts";
import { int32, uint8 } from "../../../src/dtype.ts";
import { ArgumentError, OutOfMemoryError } from "../../../src/errors.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { Tensor } from "../../../src/tensor/tensor.ts";
import { trainStep } from "../../../src/train/step.ts";
import { StepGraph } from "../../../src/train/step_graph.ts";
import { buildCudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";
import { longTest, sharedTest as test, usualFirst } from "../../support/share.ts";
import { startWorld } from "../../support/world.ts";
import { loseRank, type Loss } from "./graph_ranks.ts";
import { CONFIG, type OpenTraining, openTraining } from "./llama.ts";

const skip = lackingForTwin();
const RUN = { steps: 4, batch: 1 };
/** Samples of 8 tokens that fit the memory, and more than do. */
const [MANY, TOO_MANY] = [4, 16];

/** Forward and backward of some samples, of which the latter may find no memory left; says which of both failed. */
function tryStep(
  { model, optimizer }: OpenTraining,
  batch: number,
  { label = 1, isFull = false } = {},
): "forward" | "backward" | undefined {
  using _frame = scope();
  optimizer.zeroGrad();
  const { device } = model;
  const ids = (id: number): Int32Array => new Int32Array(batch * 8).fill(id);
  const [inputIds, labels] = [ids(1), ids(label)].map((list) =>
    tensor(device, list, { shape: [batch, 8], dtype: int32 })
  );
  assert.ok(inputIds !== undefined && labels !== undefined);
  let place: "forward" | "backward" = "forward";
  try {
    const { loss } = model.call({ inputIds, labels });
    place = "backward";
    const { capacity, inUse } = device.allocator.stats;
    using _rest = isFull ? Tensor.empty(device, [capacity - inUse - 1024], uint8, "rest") : undefined;
    loss?.backward();
  } catch (error) {
    if (!(error instanceof OutOfMemoryError)) throw error;
    assert.match(error.message, /Largest owners: .*Use a smaller batch, .* shorter sequence/s);
    return place;
  } finally {
    optimizer.zeroGrad();
  }
  return undefined;
}

longTest(
  "a step that fails on a card leaves nothing, and the next ones are as if it had not been",
  { skip },
  async () => {
    const twin = await buildCudaTwin();
    const { environment } = twin;
    const free = await openCudaDevice(0, { environment, memoryBytes: 2 ** 28 });
    const ample = openTraining(free, RUN);
    const expected = Array.from({ length: RUN.steps }, (_, step) => ample.take(step));
    free.allocator.resetPeak();
    assert.equal(tryStep(ample, MANY), undefined);
    const memoryBytes = free.allocator.stats.peak;
    ample[Symbol.dispose]();
    free.dispose();
    const device = await openCudaDevice(0, { environment, memoryBytes });
    using training = openTraining(device, RUN);
    const { model, optimizer } = training;
    let fails = false;
    model.layers.at(-1)?.registerForwardPreHook(() => {
      if (fails) throw new RangeError("a block throws");
    });
    const steps: unknown[] = [training.take(0)];
    optimizer.zeroGrad();
    const { inUse } = device.allocator.stats;
    assert.equal(tryStep(training, TOO_MANY), "forward");
    assert.equal(device.allocator.stats.inUse, inUse);
    steps.push(training.take(1));
    assert.equal(tryStep(training, MANY, { isFull: true }), "backward");
    optimizer.zeroGrad();
    assert.equal(device.allocator.stats.inUse, inUse);
    fails = true;
    assert.throws(() => training.take(2), /^RangeError: a block throws$/);
    fails = false;
    optimizer.zeroGrad();
    assert.equal(device.allocator.stats.inUse, inUse);
    steps.push(training.take(2));
    assert.equal(tryStep(training, 1, { label: CONFIG.vocab_size }), undefined);
    assert.throws(() => device.status.check(), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.match(error.message, /^Cannot take the cross-entropy of label 96 at row 0: there are 96 classes$/);
      return true;
    });
    steps.push(training.take(3));
    assert.deepEqual(steps, expected);
    device.dispose();
    assert.equal(twinReports(twin), "");
  },
);

test("gradients of a reduction that fails are cleared after what it began", { skip }, async () => {
  const twin = await buildCudaTwin();
  const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 28 });
  using group = await openProcessGroup({ device });
  let fails = true;
  const parallelize = (model: CausalLm): void => {
    for (const layer of model.layers) {
      fullyShard(layer, { mesh: group }).setCustomReduceScatter(({ group, unit, phase, ...args }) => {
        if (fails) throw new RangeError("nothing is reduced");
        return group.reduceScatter(args, unit, phase);
      });
    }
    fullyShard(model, { mesh: group });
  };
  using training = openTraining(device, { ...RUN, group, parallelize });
  assert.throws(() => training.take(0), /^RangeError: nothing is reduced$/);
  assert.equal(twinReports(twin), "");
  fails = false;
  const steps = Array.from({ length: RUN.steps }, (_, step) => training.take(step));
  using whole = openTraining(device, RUN);
  assert.deepEqual(steps, Array.from({ length: RUN.steps }, (_, step) => whole.take(step)));
  assert.equal(twinReports(twin), "");
  device.dispose();
});

test(
  "a captured step whose sharded model was disposed is not launched, which would write to freed memory",
  { skip },
  async () => {
    const twin = await buildCudaTwin();
    const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 28 });
    using group = await openProcessGroup({ device });
    const { model, optimizer } = openTraining(device, RUN);
    const root = fullyShard(model, { mesh: group });
    const graph = new StepGraph(device);
    const inputIds = new Int32Array(8).fill(1);
    const batch = { microBatches: [{ inputIds, labels: inputIds, batch: 1, seq: 8 }] };
    const take = (): unknown => trainStep({ device, group, model, optimizer, maxGradNorm: 1, graph }, batch, 1);
    for (let step = 0; step < 5; step++) take();
    root.dispose();
    assert.throws(take, /^UseAfterDisposeError: 'model\.embed_tokens\.weight' has no memory/);
    graph[Symbol.dispose]();
    optimizer.dispose();
    device.dispose();
    assert.equal(twinReports(twin), "");
  },
);

const BROKEN =
  /^CollectiveError: .*rank 1 stopped all ranks: .*\bNCCL\b.*ncclRemoteError\b.*the connection of rank 1 was reset/;
const LOSSES: readonly (readonly [loss: Loss, said: RegExp])[] = [
  [
    { step: 1, how: "is killed in a forward", hasGraph: false },
    /^CollectiveError: .*rank 1 died \(its process or Worker is gone\) while this rank waited for/,
  ],
  [
    { step: 5, how: "is killed before a step", hasGraph: true },
    /^CollectiveError: .*rank 1 died \(its process or Worker is gone\) while this rank waited for/,
  ],
  [{ step: 1, how: "throws in a forward", hasGraph: false }, /^CollectiveError: .*RangeError: a block throws/],
  [{ step: 3, how: "throws in a forward", hasGraph: true }, /^CollectiveError: .*RangeError: a block throws/],
  [{ step: 1, how: "loses the network in a forward", hasGraph: false }, BROKEN],
  [{ step: 5, how: "loses the network before a step", hasGraph: true }, BROKEN],
];
for (const [loss, said] of usualFirst(LOSSES, (place) => [0, 3].includes(place))) {
  const by = loss.hasGraph ? "with graphs" : "by single calls";
  test(`a rank that ${loss.how} (${loss.step}, ${by}) ends the other, which says why`, {
    skip,
    timeout: 120_000,
  }, async () => {
    const { variables } = await buildCudaTwin();
    const { ends } = startWorld(2, loseRank, { over: "nccl", variables, data: loss, planes: { timeoutSeconds: 60 } });
    const [first] = await ends;
    assert.match(first?.error ?? "", said);
    assert.equal(first?.code, 0, first?.said.join("\n"));
  });
}
