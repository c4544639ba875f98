/**
 * Several ranks, each with a card of its own, on doubles of NVIDIA's libraries: FSDP and DDP train as one rank on the CPU does, and
 * no access is a race.
 *
 * @module
 */
import assert from "node:assert/strict";
import { openDevice } from "../../../src/device/registry.ts";
import { buildCudaTwin, lackingForTwin, type TwinOperation } from "../../native/cuda/build.ts";
import { onlyInAll, sharedTest as test } from "../../support/share.ts";
import { temporaryDirectory } from "../../support/temporary.ts";
import { valuesOf, world } from "../../support/world.ts";
import { requireSameSteps, type Steps, train } from "./llama.ts";
import { eventsOfStep, trainInterrupted, trainOddly, trainShared } from "./ranks.ts";

const skip = lackingForTwin();
const CASES = [
  ["hsdp", 4, 2, 2],
] as const;
const LONG_CASES = [
  ["hsdp", 4, 4, 2],
  ["offload", 2, 4, 1],
  ["fsdp", 4, 8, 1],
  ["offload", 2, 8, 1],
  ["ddp", 2, 8, 1],
  ["fsdp", 2, 4, 2],
  ["fsdp", 4, 8, 2],
  ["unpinned", 2, 4, 1],
  ["fsdp", 4, 20, 1],
  ["fsdp", 2, 20, 1],
  ["ddp", 2, 20, 1],
  ["ddp", 4, 20, 1],
  ["fsdp", 3, 20, 1],
  ["ddp", 3, 20, 1],
] as const;
for (const [strategy, size, steps, hosts] of [...CASES, ...onlyInAll(LONG_CASES)]) {
  const where = hosts === 1 ? "" : ` of ${hosts} hosts`;
  test(`${strategy} over ${size} cards${where} trains ${steps} steps as one rank on the CPU`, {
    skip,
    timeout: 600_000,
  }, async () => {
    const cpu = await openDevice("cpu", { memoryBytes: 2 ** 26 });
    const run = { steps, batch: size === 3 ? 6 : 4 };
    const expected = train(cpu, run);
    cpu.dispose();
    const { variables } = await buildCudaTwin();
    const data = { ...run, strategy };
    const options = { over: "nccl", variables, data } as const;
    const planes = hosts === 1 ? {} : { ranksPerHost: size / hosts };
    const ranks = valuesOf(await world(size, trainShared, { ...options, planes }));
    // The way in which ranks meet changes no bit.
    for (const other of onlyInAll(hosts > 1 ? [options] : [])) {
      assert.deepEqual(ranks, valuesOf(await world(size, trainShared, other)));
    }
    requireSameSteps(wholeOf(ranks), expected);
  });
}

/** The steps of a world: the ranks' parts of the mean loss make the whole one; the norm is the whole one on each. */
function wholeOf(ranks: readonly Steps[]): Steps {
  return (ranks[0] ?? assert.fail()).map(([, norm], step) => {
    for (const steps of ranks) assert.equal(steps[step]?.[1], norm, `step ${step}: ranks have other norms`);
    return [ranks.reduce((sum, steps) => sum + (steps[step]?.[0] ?? NaN), 0), norm];
  });
}

for (const strategy of onlyInAll(["fsdp", "ddp"] as const)) {
  test(
    `${strategy} over 4 cards goes on from its checkpoint on 4 cards and on 2`,
    { skip, timeout: 600_000 },
    async () => {
      using folder = temporaryDirectory();
      const { variables } = await buildCudaTwin();
      const data = { strategy, steps: 12, batch: 4, directory: folder.path, savedAfter: 6 };
      const options = { over: "nccl", variables, data } as const;
      const whole = wholeOf(valuesOf(await world(4, trainInterrupted, options)));
      assert.equal(whole.length, 12);
      const again = wholeOf(valuesOf(await world(4, trainInterrupted, options)));
      assert.deepEqual(again, whole.slice(6));
      requireSameSteps(wholeOf(valuesOf(await world(2, trainInterrupted, options))), whole.slice(6));
    },
  );
}

for (const size of onlyInAll([2, 4])) {
  test(`odd orders of unsharding, resharding and prefetching change nothing on ${size} cards`, {
    skip,
    timeout: 600_000,
  }, async () => {
    const { variables } = await buildCudaTwin();
    const data = { strategy: "fsdp", steps: 7, batch: 4 } as const;
    const options = { over: "nccl", variables, data } as const;
    const plain = valuesOf(await world(size, trainShared, options));
    assert.deepEqual(valuesOf(await world(size, trainOddly, options)), plain);
  });
}

const [COMPUTE, GATHER, REDUCE] = [1, 2, 3];
/** The way in which an NCCL that has copy engines gathers. */
const BY_COPY_ENGINES = "all-gather by copy engines";

/** Work of the compute stream. */
function computeOf(operations: readonly TwinOperation[]): readonly TwinOperation[] {
  return operations.filter(({ stream }) => stream === COMPUTE);
}

test("collectives of FSDP run beside compute, and the host waits for nothing before the update", {
  skip,
  timeout: 300_000,
}, async () => {
  const { variables } = await buildCudaTwin();
  const ranks = valuesOf(await world(2, eventsOfStep, { over: "nccl", variables, data: false }));
  for (const { operations, hostWaits } of ranks) {
    assert.equal(hostWaits, 0);
    const gathers = operations.filter(({ name }) => name === BY_COPY_ENGINES);
    const reductions = operations.filter(({ name }) => name === "reduce-scatter");
    // The root, which stays gathered, and each block twice; each unit is reduced once.
    assert.deepEqual([gathers.length, reductions.length], [5, 3]);
    for (const gather of gathers.slice(1)) {
      const before = computeOf(operations.slice(0, operations.indexOf(gather)));
      const beside = before.filter(({ index }) => index > (gather.after[COMPUTE] ?? NaN));
      assert.ok(beside.length >= 20, `a gather comes after all but ${beside.length} of ${before.length} calls`);
    }
    // The gather of the last block, beside the backward of the first.
    const reduction = reductions[0] ?? assert.fail();
    const later = computeOf(operations.slice(operations.indexOf(reduction)));
    const beside = later.filter(({ after }) => (after[REDUCE] ?? NaN) < reduction.index);
    assert.ok(beside.length >= 50, `all but ${beside.length} of ${later.length} calls come after a reduction`);
  }
});

test("a gather to memory that is not registered comes after the computation of the unit before the last", {
  skip,
  timeout: 300_000,
}, async () => {
  const variables = { ...(await buildCudaTwin()).variables, TWIN_NCCL: "22605" }; // which registers none
  for (const { operations } of valuesOf(await world(2, eventsOfStep, { over: "nccl", variables, data: false }))) {
    const gathers = operations.filter(({ name }) => name === "all-gather");
    const [, , second, again] = gathers;
    assert.ok(gathers.length === 5 && second !== undefined && again !== undefined);
    // The root is gathered, then each of two blocks, then the second block for its backward.
    const first = computeOf(operations.slice(0, operations.indexOf(second))).filter(({ name }) =>
      name !== "free"
    ).at(-1) ?? assert.fail();
    assert.ok(
      (second.after[COMPUTE] ?? NaN) < first.index,
      "the second block is gathered beside the first's computation",
    );
    const awaited = operations.find(({ stream, index }) => stream === COMPUTE && index === again.after[COMPUTE]);
    assert.equal(awaited?.name, "free", "its next gather waits for the first block's memory");
    assert.ok(awaited.index > first.index && awaited.index < first.index + 5);
  }
});

test("what is offloaded is copied beside compute, and the host waits for nothing before the norm", {
  skip,
  timeout: 300_000,
}, async () => {
  const { variables } = await buildCudaTwin();
  const ranks = valuesOf(await world(2, eventsOfStep, { over: "nccl", variables, data: true }));
  for (const { operations, hostWaits } of ranks) {
    assert.equal(hostWaits, 0);
    const copiesOf = (stream: number): number =>
      operations.filter((one) => one.name === "copy" && one.stream === stream).length;
    // Each of the five gathers brings this rank's part, and each of the three reductions takes its result away.
    assert.deepEqual([copiesOf(GATHER), copiesOf(REDUCE)], [5, 3]);
  }
});
