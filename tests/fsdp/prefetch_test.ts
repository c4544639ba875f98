/** When units are gathered ahead of their use, in the order of events. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fullyShard, type FullyShardedModule, noGrad, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";
import type { Rank } from "./scenarios.ts";

/** Layers as units of their own, the head with the root; what happens is told in order. */
interface Recorded {
  readonly rank: Rank;
  readonly model: Stack;
  readonly layers: readonly FullyShardedModule[];
  readonly root: FullyShardedModule;
  /** The events of a step: `gather 0 forward`, `run 0`, `reduce 0`. */
  step(): string[];
}

const DEPTH = 4;

async function record(): Promise<Recorded> {
  const events: string[] = [];
  const rank = await openRank();
  rank.group.observe(({ kind, unit, phase }) => {
    const place = /layers\.(\d+)/.exec(unit)?.[1] ?? "root";
    if (kind === "gather") events.push(`gather ${place} ${phase}`);
    if (kind === "reduce-scatter") events.push(`reduce ${place}`);
  });
  const model = new Stack(rank.device, WIDTH, DEPTH);
  const layers = model.layers.map((layer) => fullyShard(layer, { mesh: rank.group }));
  const root = fullyShard(model, { mesh: rank.group });
  for (const [i, layer] of model.layers.entries()) layer.registerForwardPreHook(() => void events.push(`run ${i}`));
  initializeParameters(model, 5);
  const step = (): string[] => {
    events.length = 0;
    using _frame = scope();
    model.call(input(rank.device, "x", 2, WIDTH)).sum().backward();
    return [...events];
  };
  return { rank, model, layers, root, step };
}

/** The handles at places of a list. */
function pick<T>(list: readonly T[], ...places: readonly number[]): T[] {
  return places.flatMap((place) => list.slice(place, place + 1));
}

const backwardOf = (unit: number | string): string[] => [`gather ${unit} backward`, `reduce ${unit}`];

describe("setModulesToForwardPrefetch()", () => {
  it("gathers the next unit before this one computes", async () => {
    const { layers, step } = await record();
    for (const [i, layer] of layers.entries()) layer.setModulesToForwardPrefetch(pick(layers, i + 1));
    const forward = ["gather 1", "run 0", "gather 2", "run 1", "gather 3", "run 2", "run 3"];
    for (let turn = 0; turn < 2; turn++) {
      assert.deepEqual(step(), [
        ...["gather root forward", "gather 0 forward"],
        ...forward.map((event) => event.startsWith("gather") ? `${event} forward` : event),
        ...[3, 2, 1, 0].flatMap(backwardOf),
        "reduce root",
      ]);
    }
  });

  it("gathers two ahead in the order given, each once", async () => {
    const { layers, step } = await record();
    for (const [i, layer] of layers.entries()) layer.setModulesToForwardPrefetch(pick(layers, i + 1, i + 2));
    assert.deepEqual(step().slice(0, 9), [
      ...["gather root forward", "gather 0 forward", "gather 1 forward", "gather 2 forward", "run 0"],
      ...["gather 3 forward", "run 1", "run 2", "run 3"],
    ]);
  });

  it("frees what it gathered for a module that does not run", async () => {
    const { layers, model, root, step } = await record();
    model.order = [0, 2];
    pick(layers, 0)[0]?.setModulesToForwardPrefetch(pick(layers, 1));
    assert.deepEqual(step().slice(0, 5), [
      ...["gather root forward", "gather 0 forward", "gather 1 forward", "run 0", "gather 2 forward"],
    ]);
    assert.ok(root.units().every(({ unsharded }) => !unsharded));
  });
});

describe("setModulesToBackwardPrefetch()", () => {
  it("gathers the unit before it while one computes, as backwardPrefetch does", async () => {
    const { layers, root, step } = await record();
    root.setModulesToBackwardPrefetch(pick(layers, 3));
    for (const [i, layer] of layers.entries()) layer.setModulesToBackwardPrefetch(i === 0 ? [] : pick(layers, i - 1));
    // The root is still gathered; its pre-backward comes first and begins the chain.
    assert.deepEqual(step().slice(-9), [
      ...["gather 3 backward", "gather 2 backward", "reduce 3", "gather 1 backward", "reduce 2"],
      ...["gather 0 backward", "reduce 1", "reduce 0", "reduce root"],
    ]);
  });

  it("gathers two ahead", async () => {
    const { layers, root, step } = await record();
    root.setModulesToBackwardPrefetch(pick(layers, 3, 2));
    for (const [i, layer] of layers.entries()) {
      layer.setModulesToBackwardPrefetch(pick(layers, ...[i - 1, i - 2].filter((place) => place >= 0)));
    }
    assert.deepEqual(step().slice(-9), [
      ...["gather 3 backward", "gather 2 backward", "gather 1 backward", "reduce 3", "gather 0 backward", "reduce 2"],
      ...["reduce 1", "reduce 0", "reduce root"],
    ]);
  });

  it("frees what it gathered in vain by the end of the backward", async () => {
    const { layers, model, root, step } = await record();
    model.order = [0, 2, 3];
    pick(layers, 2)[0]?.setModulesToBackwardPrefetch(pick(layers, 1));
    assert.ok(step().includes("gather 1 backward"));
    assert.ok(root.units().every(({ unsharded }) => !unsharded));
    model.order = [0, 1, 2, 3];
    assert.equal(step().filter((event) => event === "gather 1 forward").length, 1);
  });
});

describe("unshard()", () => {
  it("is waited for by its handle, by await, or by the forward, and gathers once", async () => {
    const { rank, model, layers, root, step } = await record();
    const before = step();
    const [first, second, third] = layers;
    assert.ok(first !== undefined && second !== undefined && third !== undefined);
    const seen = rank.calls.length;
    first.unshard({ asyncOp: true }).wait();
    await second.unshard({ asyncOp: true });
    third.unshard({ asyncOp: true });
    second.unshard().wait();
    assert.deepEqual(rank.calls.slice(seen).map(({ kind, phase }) => `${kind} ${phase}`), [
      ...["gather manual", "gather manual", "gather manual"],
    ]);
    const after = step();
    assert.deepEqual(
      before.filter((event) => !after.includes(event)),
      ["gather 0 forward", "gather 1 forward", "gather 2 forward"],
    );
    assert.ok(root.units().every(({ unsharded }) => !unsharded));
    first.unshard();
    assert.equal(model.layers[0]?.linear.weight.numel, model.layers[0]?.linear.weight.toArray().length);
    first.reshard();
    assert.equal(first.unit.unsharded, false);
  });

  it("does nothing for a unit without parameters of its own, and comes before any forward", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    fullyShard([...model.layers, model.head], { mesh: group });
    const root = fullyShard(model, { mesh: group });
    initializeParameters(model, 5);
    calls.length = 0;
    await root.unshard({ asyncOp: true });
    assert.deepEqual(calls, []);
    using _frame = scope();
    noGrad(() => model.call(input(device, "x", 1, WIDTH)));
  });

  it("fails by its handle where a gather does", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    const root = fullyShard(model, { mesh: group });
    assert.throws(() => root.unshard({ asyncOp: true }), /'head\.weight' has no values|'parameter' has no values/);
    assert.deepEqual([...gradients(model.parameters()).values()].filter((list) => list !== undefined), []);
  });
});
