/** When units are gathered, freed and reduced, and that gradients are those of a model in one piece. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { sharedTest as it } from "../support/share.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { noGrad, scope, SGD } from "../../mod.ts";
import type { Call } from "../../src/comm/call.ts";
import {
  forwardBackward,
  type LifeCycle,
  lifeCycle,
  type ShardCase,
  shardStack,
  traffic,
  WIDTH,
} from "./life_cycle_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { openRank, runRanks } from "./run.ts";
import type { Rank } from "./scenarios.ts";

const forward = (...units: readonly (number | string)[]): string[] => units.map((unit) => `gather ${unit} forward`);
const backward = (...units: readonly (number | string)[]): string[] => units.map((unit) => `gather ${unit} backward`);

const reduceEach = (...units: readonly (number | string)[]): string[] => units.map((unit) => `reduce ${unit}`);

/** Gathers and reductions of the backward, block by block. */
const both = (...units: readonly (number | string)[]): string[] =>
  units.flatMap((unit) => [...backward(unit), ...reduceEach(unit)]);

async function lifeCycleOf(world: number, data: ShardCase): Promise<LifeCycle> {
  if (world === 1) return lifeCycle(await openRank(), data);
  const results = await runRanks(world, "lifeCycle", data);
  for (const result of results) {
    assert.deepEqual(result, results[0], "all ranks make the same calls and see the same norms");
  }
  const [first] = results;
  assert.ok(isLifeCycle(first));
  return first;
}

function isLifeCycle(value: unknown): value is LifeCycle {
  return typeof value === "object" && value !== null && "steps" in value;
}

/** Gradients of an unsharded stack of the same weights after `body`. */
async function plainGradients(
  body: (stack: { model: Stack }, rank: Rank) => void,
): Promise<Map<string, number[] | undefined>> {
  const rank = await openRank();
  const model = new Stack(rank.device, WIDTH, 3);
  initializeParameters(model, 5);
  body({ model }, rank);
  return gradients(model.parameters());
}

function assertClose(
  actual: Map<string, number[] | undefined>,
  expected: Map<string, number[] | undefined>,
  factor = 1,
): void {
  assert.deepEqual([...actual.keys()], [...expected.keys()]);
  for (const [fqn, list] of expected) {
    list?.forEach((value, i) => {
      const got = actual.get(fqn)?.[i] ?? NaN;
      assert.ok(
        Math.abs(got - value * factor) <= 1e-5 * (1 + Math.abs(value)),
        `${fqn}[${i}] is ${got}, not ${value * factor}`,
      );
    });
  }
}

/** Numbers of gathers and reductions. */
function count(calls: readonly string[] | undefined): { gathers: number; reductions: number } {
  const gathers = calls?.filter((call) => call.startsWith("gather")).length ?? 0;
  return { gathers, reductions: (calls?.length ?? 0) - gathers };
}

describe("fullyShard()", () => {
  for (const world of [1, 2]) {
    const wholeForward = forward("root", 0, 1, 2);

    it(`gathers blocks twice and the root once, and reduces each once, on ${world} ranks`, async () => {
      const { steps: [first, evaluation, second], norms } = await lifeCycleOf(world, { depth: 3 });
      assert.deepEqual(first, [...wholeForward, ...both(2, 1, 0), "reduce root"]);
      assert.deepEqual(evaluation, wholeForward, "an eval forward gathers each unit once");
      assert.deepEqual(second, first, "no copy outlives the eval forward or the optimizer's step");
      assert.notEqual(norms[0], norms[1]);
    });

    it(`keeps what is not to be freed until the backward has left it, on ${world} ranks`, async () => {
      const { steps: [first, , second] } = await lifeCycleOf(world, { depth: 3, reshardAfterForward: false });
      assert.deepEqual(first, [...wholeForward, ...reduceEach(2, 1, 0, "root")]);
      assert.deepEqual(second, first, "a kept copy does not outlive the optimizer's step");
    });

    it(`frees the root after its forward if told to, on ${world} ranks`, async () => {
      const { steps: [first] } = await lifeCycleOf(world, { depth: 3, rootReshard: true });
      assert.deepEqual(first, [...wholeForward, ...backward("root"), ...both(2, 1, 0), "reduce root"]);
    });

    it(`gathers one unit ahead in the backward if told to, on ${world} ranks`, async () => {
      const { steps: [first, , second] } = await lifeCycleOf(world, { depth: 3, backwardPrefetch: true });
      const ahead = [...backward(2, 1), "reduce 2", ...backward(0), ...reduceEach(1, 0, "root")];
      assert.deepEqual(first, [...wholeForward, ...ahead]);
      assert.deepEqual(second, first);
    });
  }

  it("computes with new values after an eval forward and an optimizer step", async () => {
    const rank = await openRank();
    const { model } = shardStack(rank, { depth: 2, reshardAfterForward: false, rootReshard: false });
    const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
    const evaluate = (): number[] => {
      using _frame = scope();
      return noGrad(() => [...model.call(input(rank.device, "x", 2, WIDTH)).toArray()]);
    };
    const plain = new Stack(rank.device, WIDTH, 2);
    initializeParameters(plain, 5);
    const plainOptimizer = new SGD(plain.parameters(), { learningRate: 0.1 });
    for (let step = 0; step < 3; step++) {
      using _frame = scope();
      const before = evaluate();
      assert.deepEqual(
        before,
        noGrad(() => [...plain.call(input(rank.device, "x", 2, WIDTH)).toArray()]),
        `step ${step}`,
      );
      for (const [stack, update] of [[model, optimizer], [plain, plainOptimizer]] as const) {
        stack.call(input(rank.device, `step ${step}`, 2, WIDTH)).sum().backward();
        stack.call(input(rank.device, "wasted", 2, WIDTH)); // gathers, and no backward comes to free it
        update.step();
        update.zeroGrad();
      }
      assert.notDeepEqual(evaluate(), before);
    }
  });

  it("adds up gradients without communication while they are not to be reduced", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3 });
    stack.sharded.setRequiresGradientSync(false);
    rank.calls.length = 0;
    for (const name of ["a", "b"]) forwardBackward(rank, stack, name);
    assert.deepEqual(count(traffic(rank)), { gathers: 14, reductions: 0 });
    assert.ok(
      [...gradients(stack.model.parameters()).values()].every((list) => list === undefined),
      "none is reduced yet",
    );
    stack.sharded.setRequiresGradientSync(true);
    stack.sharded.setGradientDivideFactor(4);
    rank.calls.length = 0;
    forwardBackward(rank, stack, "c");
    assert.deepEqual(count(traffic(rank)), { gathers: 7, reductions: 4 });
    const expected = await plainGradients((plain, other) =>
      ["a", "b", "c"].forEach((name) => forwardBackward(other, { ...stack, ...plain }, name))
    );
    assertClose(gradients(stack.model.parameters()), expected, 1 / 4);
  });

  it("reduces what earlier micro-batches left in a unit that the last one does not reach", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3 });
    stack.sharded.setRequiresGradientSync(false);
    forwardBackward(rank, stack, "a");
    stack.sharded.setRequiresGradientSync(true);
    stack.model.order = [0, 2];
    forwardBackward(rank, stack, "b");
    const expected = await plainGradients((plain, other) => {
      forwardBackward(other, { ...stack, ...plain }, "a");
      plain.model.order = [0, 2];
      forwardBackward(other, { ...stack, ...plain }, "b");
    });
    assertClose(gradients(stack.model.parameters()), expected);
  });

  it("runs a module twice in a forward, and reduces it once", async () => {
    for (const backwardPrefetch of [false, true]) {
      const rank = await openRank();
      const stack = shardStack(rank, { depth: 3, backwardPrefetch });
      stack.model.order = [0, 1, 1, 2, 1];
      rank.calls.length = 0;
      forwardBackward(rank, stack, "a");
      const calls = traffic(rank);
      assert.deepEqual(count(calls).reductions, 4);
      if (!backwardPrefetch) {
        assert.deepEqual(calls.slice(6), [
          ...backward(1),
          ...both(2),
          ...backward(1, 1),
          "reduce 1",
          ...both(0),
          "reduce root",
        ]);
      }
      const expected = await plainGradients((plain, other) => {
        plain.model.order = [0, 1, 1, 2, 1];
        forwardBackward(other, { ...stack, ...plain }, "a");
      });
      assert.deepEqual(gradients(stack.model.parameters()), expected, "the same bits as without sharding");
    }
  });

  it("runs two forwards before two backwards, in either order", async () => {
    for (const order of [[0, 1], [1, 0]]) {
      const rank = await openRank();
      const stack = shardStack(rank, { depth: 3 });
      const run = (model: Stack, own: Rank): void => {
        using _frame = scope();
        const losses = ["a", "b"].map((name) => model.call(input(own.device, name, 3, WIDTH)).sum());
        for (const i of order) losses[i]?.backward();
      };
      run(stack.model, rank);
      assertClose(gradients(stack.model.parameters()), await plainGradients(({ model }, own) => run(model, own)));
      assert.ok(stack.sharded.units().every((unit) => !unit.unsharded));
    }
  });

  it("survives a module whose output the loss does not use", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3, backwardPrefetch: true });
    stack.model.wasted = [1];
    for (let step = 0; step < 2; step++) forwardBackward(rank, stack, "a");
    assert.ok(stack.sharded.units().every((unit) => !unit.unsharded));
    const twice = await plainGradients((plain, own) =>
      ["a", "a"].forEach((name) => forwardBackward(own, { ...stack, ...plain }, name))
    );
    assertClose(gradients(stack.model.parameters()), twice);
  });

  it("starts afresh after a backward that failed", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3 });
    const { kernels } = rank.device;
    const product = kernels.gemm;
    {
      using _frame = scope();
      const loss = stack.model.call(input(rank.device, "a", 3, WIDTH)).sum();
      let calls = 0;
      Object.defineProperty(kernels, "gemm", {
        configurable: true,
        value: (...args: Parameters<typeof product>) => {
          if (++calls === 3) throw new Error("injected");
          product.apply(kernels, args);
        },
      });
      assert.throws(() => loss.backward(), /injected/);
      Object.defineProperty(kernels, "gemm", { configurable: true, value: product });
    }
    stack.model.head.bias?.zeroGrad(); // some of them only
    assert.ok(stack.sharded.units().every((unit) => !unit.unsharded), "what the pass gathered is freed");
    forwardBackward(rank, stack, "b");
    const expected = await plainGradients((plain, own) => forwardBackward(own, { ...stack, ...plain }, "b"));
    assert.deepEqual(gradients(stack.model.parameters()), expected);
  });

  it("clears one parameter's gradient and keeps its neighbors'", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3 });
    forwardBackward(rank, stack, "a");
    stack.model.head.weight.zeroGrad();
    forwardBackward(rank, stack, "b");
    const [onlyB, all] = [
      await plainGradients((plain, own) => forwardBackward(own, { ...stack, ...plain }, "b")),
      await plainGradients((plain, own) =>
        ["a", "b"].forEach((name) => forwardBackward(own, { ...stack, ...plain }, name))
      ),
    ];
    all.set("head.weight", onlyB.get("head.weight"));
    assertClose(gradients(stack.model.parameters()), all);
  });

  it("obeys a setting made before the first forward, also for the root", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 2 });
    stack.sharded.setReshardAfterForward(true);
    forwardBackward(rank, stack, "a");
    assert.ok(traffic(rank).includes("gather root backward"));
  });

  it("holds at most the root and one block gathered, and gradients of as much, and nothing after a step", async () => {
    const calls: Call[] = [];
    const rank = await openRank(undefined, calls);
    const stack = shardStack(rank, { depth: 4 });
    const bytesOf = (what: string): number =>
      rank.device.allocator.owners(1000).filter(({ owner }) => owner.endsWith(what)).reduce(
        (sum, { bytes }) => sum + bytes,
        0,
      );
    const unit = stack.sharded.unit.segments.reduce((sum, { plan }) => sum + plan.shardLength * plan.numShards * 4, 0);
    let [gathered, whole] = [0, 0];
    calls.push = (...items: Call[]): number => {
      gathered = Math.max(gathered, bytesOf(" gathered parameters"));
      whole = Math.max(whole, bytesOf(" gradients"));
      return Array.prototype.push.apply(calls, items);
    };
    forwardBackward(rank, stack, "a");
    assert.equal(gathered, 2 * unit, "all units are of one size here");
    assert.equal(whole, 2 * unit);
    assert.equal(bytesOf(" gathered parameters"), 0);
    assert.equal(bytesOf(" gradients"), 0);
    const before = bytesOf(" gradient shard");
    assert.equal(before, 5 * unit, "one rank has all");
    for (const parameter of stack.model.parameters()) parameter.zeroGrad();
    assert.equal(bytesOf(" gradient shard"), 0);
    stack.sharded.dispose();
    assert.equal(rank.device.allocator.stats.inUse, 0, "everything is given back");
  });
});
