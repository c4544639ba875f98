/** The effects of a handle's settings, and the units that they reach. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ArgumentError } from "../../doors/errors.ts";
import { Embedding, initializeParameters, Linear, Module, ModuleList } from "../../doors/nn.ts";
import {
  AdamW,
  clipGradNorm,
  fullyShard,
  type FullyShardedModule,
  int32,
  noGrad,
  replicate,
  scope,
  shareCommContext,
  type Tensor,
  tensor,
} from "../../mod.ts";
import { shardedModuleOf } from "../../src/fsdp/handle.ts";
import { valuesOf, world } from "../support/world.ts";
import { forwardBackward, shardStack, traffic, WIDTH } from "./life_cycle_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";
import type { Rank } from "./scenarios.ts";
import { ignoreHead } from "./settings_ranks.ts";

/** Gathers of a step. */
const gathers = (calls: readonly string[]): string[] => calls.filter((call) => call.startsWith("gather"));

/** A stack whose memory has another name. */
class Last extends Stack {}

/** Whole gradients that have memory. */
function heldInputs({ device }: Rank): number {
  return device.allocator.owners(Infinity).filter(({ owner }) => owner.endsWith(" gradients")).length;
}

/** Gets the number of whole gradients that have memory at each reduction. */
function holdAt(rank: Rank): readonly number[] {
  const held: number[] = [];
  rank.group.observe(({ kind }) => void (kind === "reduce-scatter" && held.push(heldInputs(rank))));
  return held;
}

describe("settings", () => {
  it("reach the units below, or this one alone", async () => {
    const { sharded } = shardStack(await openRank(), { depth: 2 });
    const units = sharded.units();
    const all = (of: (unit: typeof units[number]) => unknown): unknown[] => units.map(of);
    sharded.setReshardAfterForward(false, { recurse: false });
    assert.deepEqual(all((unit) => unit.reshardAfterForward), [false, undefined, undefined]);
    sharded.setReshardAfterForward(true);
    assert.deepEqual(all((unit) => unit.reshardAfterForward), [true, true, true]);
    sharded.setRequiresGradientSync(false, { recurse: false });
    assert.deepEqual(all((unit) => unit.requiresGradientSync), [false, true, true]);
    sharded.setReshardAfterBackward(false, { recurse: false });
    assert.deepEqual(all((unit) => unit.reshardAfterBackward), [false, true, true]);
    sharded.setIsLastBackward(false, { recurse: false });
    assert.deepEqual(all((unit) => unit.isLastBackward), [false, true, true]);
    sharded.setUnshardInBackward(false, { recurse: false });
    assert.deepEqual(all((unit) => unit.unshardInBackward), [false, true, true]);
    sharded.setMaxReduceScatterInputs(2, { recurse: false });
    assert.deepEqual(all((unit) => unit.maxReduceScatterInputs), [2, 1, 1]);
    for (const count of [0, 1.5, NaN]) {
      assert.throws(() => sharded.setMaxReduceScatterInputs(count), /whole number above 0/);
    }
    sharded.setGradientDivideFactor(3, { recurse: false });
    assert.deepEqual(all((unit) => unit.gradientDivideFactor), [3, 1, 1]);
    assert.throws(
      () => sharded.setGradientDivideFactor(0),
      /Cannot divide gradients by 0: the factor must be positive/,
    );
  });

  it("setReshardAfterBackward(false) spares the next forward its gathers, until an update", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 2 });
    const optimizer = new AdamW(stack.model.parameters());
    stack.sharded.setReshardAfterBackward(false);
    const step = (): string[] => {
      rank.calls.length = 0;
      forwardBackward(rank, stack, "a");
      return gathers(traffic(rank));
    };
    const whole = step();
    assert.deepEqual(step(), whole.filter((call) => call.endsWith("backward")), "the backward still gathers blocks");
    optimizer.step();
    assert.deepEqual(step(), whole);
    stack.sharded.setReshardAfterBackward(true);
    step();
    assert.ok(stack.sharded.units().every(({ unsharded }) => !unsharded));
  });

  it("setMaxReduceScatterInputs() lets gradients that are reduced keep their memory, of all units the most", async () => {
    const run = async (set: (units: readonly FullyShardedModule[]) => void) => {
      const rank = await openRank();
      const { device, group } = rank;
      const model = new Stack(device, WIDTH, 4);
      const handles = [...model.layers, model].map((module) => fullyShard(module, { mesh: group }));
      initializeParameters(model, 5);
      set(handles);
      const held = holdAt(rank);
      device.allocator.resetPeak();
      using _frame = scope();
      model.call(input(device, "x", 2, WIDTH)).sum().backward();
      assert.equal(heldInputs(rank), 0, "the pass has ended");
      const values = [...gradients(model.parameters()).values()];
      return { held, values, peak: device.allocator.stats.peakTerms.gradients };
    };
    const one = await run(() => {});
    const two = await run((handles) => handles.at(-1)?.setMaxReduceScatterInputs(2, { recurse: false }));
    const three = await run((handles) => handles[1]?.setMaxReduceScatterInputs(3));
    assert.deepEqual(one.held, [2, 2, 2, 2, 1], "a layer's, and the root's, which are written until the end");
    assert.deepEqual([two.held, three.held], [[2, 3, 3, 3, 2], [2, 3, 4, 4, 3]]);
    assert.deepEqual([two.values, three.values], [one.values, one.values]);
    assert.ok(one.peak < two.peak && two.peak < three.peak);
  });

  it("setMaxReduceScatterInputs() holds nothing between passes of a root without parameters of its own", async () => {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 3);
    for (const unit of [...model.layers, model.head]) fullyShard(unit, { mesh: rank.group });
    fullyShard(model, { mesh: rank.group }).setMaxReduceScatterInputs(2);
    initializeParameters(model, 5);
    using _frame = scope();
    model.call(input(rank.device, "x", 2, WIDTH)).sum().backward();
    assert.equal(heldInputs(rank), 0);
  });

  it("shareCommContext() refuses a unit whose root is not in the list", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 1 });
    forwardBackward(rank, stack, "a");
    const below = stack.sharded.units()[1];
    const handles = stack.model.layers.map((layer) => shardedModuleOf(layer)).filter((handle) => handle !== undefined);
    assert.equal(handles[0]?.unit, below);
    assert.throws(() => shareCommContext(handles), {
      name: "ArgumentError",
      message:
        /^Cannot share a communication context with 'layers.0': it is a submodule of the root 'Stack'. Pass root modules only$/,
    });
  });

  it("shareCommContext() counts the gradients of several roots together", async () => {
    for (const [shares, expected] of [[false, [2, 2, 3, 4, 3, 2]], [true, [2, 2, 3, 3, 2, 2]]] as const) {
      const rank = await openRank();
      const stages = [new Stack(rank.device, WIDTH, 3), new Last(rank.device, WIDTH, 1)].map((model) => {
        const inner = model.layers.map((layer) => fullyShard(layer, { mesh: rank.group }));
        const root = fullyShard(model, { mesh: rank.group });
        root.setMaxReduceScatterInputs(2);
        initializeParameters(model, 5);
        return { model, root, inner };
      });
      const roots = stages.map(({ root }) => root);
      assert.throws(
        () => shareCommContext([...roots, ...stages[0]?.inner ?? []]),
        /it is a submodule of the root 'Stack'. Pass root modules only/,
      );
      if (shares) shareCommContext(roots);
      const held = holdAt(rank);
      using _frame = scope();
      let x = input(rank.device, "x", 2, WIDTH);
      for (const { model } of stages) x = model.call(x);
      x.sum().backward();
      assert.deepEqual(held, expected);
    }
  });

  it("setUnshardInBackward(false) spares an embedding its gather", async () => {
    const { device, group, calls } = await openRank();
    const table = new Embedding(device, 8, 4);
    class Model extends Module<[ids: Tensor], Tensor> {
      readonly table = table;
      readonly head = new Linear(device, 4, 4);
      forward(ids: Tensor): Tensor {
        return this.head.call(this.table.call(ids));
      }
    }
    const model = new Model();
    const unit = fullyShard(model.table, { mesh: group });
    fullyShard(model, { mesh: group });
    initializeParameters(model, 1);
    const step = (): { gathered: number; grad: readonly number[] } => {
      using _frame = scope();
      model.zeroGrad();
      calls.length = 0;
      model.call(tensor(device, [1, 3], { shape: [1, 2], dtype: int32 })).sum().backward();
      const gathered = calls.filter(({ kind, unit }) => kind === "gather" && unit === "table").length;
      return { gathered, grad: [...table.weight.grad?.toArray() ?? []] };
    };
    const before = step();
    unit.setUnshardInBackward(false);
    assert.deepEqual(step(), { ...before, gathered: 1 });
    assert.equal(before.gathered, 2);
  });

  it("setIsLastBackward(false) reduces each micro-batch and shows the sum with the last", async () => {
    const [rank, other] = [await openRank(), await openRank()];
    const [stack, twin] = [shardStack(rank, { depth: 2 }), shardStack(other, { depth: 2 })];
    const optimizer = new AdamW(stack.model.parameters());
    stack.sharded.setIsLastBackward(false);
    rank.calls.length = 0;
    for (const name of ["a", "b"]) {
      forwardBackward(rank, stack, name);
      assert.ok([...stack.model.parameters()].every(({ grad }) => grad === undefined));
      assert.throws(() => clipGradNorm(stack.model.parameters(), 1), /not fully reduced.*setIsLastBackward\(true\)/);
      assert.throws(() => optimizer.step(), /not fully reduced/);
    }
    assert.equal(traffic(rank).filter((call) => call.startsWith("reduce")).length, 2 * 3);
    stack.sharded.setIsLastBackward(true);
    forwardBackward(rank, stack, "c");
    for (const name of ["a", "b", "c"]) forwardBackward(other, twin, name);
    assert.deepEqual(gradients(stack.model.parameters()), gradients(twin.model.parameters()));
    optimizer.step();
  });
});

describe("fullyShard() of a list", () => {
  /** A model whose head and first layer are one unit. */
  async function grouped() {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 3);
    const [first, second, third] = model.layers;
    assert.ok(first !== undefined && second !== undefined && third !== undefined);
    fullyShard(second, { mesh: rank.group });
    const group = fullyShard([third, model.head], { mesh: rank.group });
    const root = fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    return { rank, model, group, root };
  }

  const unitsIn = (calls: readonly { kind: string; unit: string; phase: unknown }[]): string[] =>
    calls.filter(({ kind }) => kind === "gather" || kind === "reduce-scatter")
      .map(({ kind, unit, phase }) => `${kind} ${unit} ${phase}`);

  it("makes one unit, gathered with the first that runs and freed after the last", async () => {
    const { rank, model, group, root } = await grouped();
    assert.deepEqual(group.modules.map(({ fqn }) => fqn), ["layers.2", "head"]);
    assert.equal(root.units().length, 3);
    rank.calls.length = 0;
    const stack = { model, sharded: root };
    forwardBackward(rank, stack, "a");
    assert.deepEqual(unitsIn(rank.calls), [
      ...["gather Stack forward", "gather layers.1 forward", "gather layers.2, head forward"],
      ...["gather layers.2, head backward", "reduce-scatter layers.2, head backward"],
      ...["gather layers.1 backward", "reduce-scatter layers.1 backward", "reduce-scatter Stack backward"],
    ]);
    const plain = await openRank();
    const twin = new Stack(plain.device, WIDTH, 3);
    initializeParameters(twin, 5);
    forwardBackward(plain, { ...stack, model: twin }, "a");
    assert.deepEqual(gradients(model.parameters()), gradients(twin.parameters()));
  });

  it("frees it at the end of the root's forward where one of them never ran", async () => {
    const { rank, model, group, root } = await grouped();
    model.order = [0, 1];
    using _frame = scope();
    noGrad(() => model.call(input(rank.device, "x", 1, WIDTH)));
    assert.equal(group.unit.unsharded, false);
    forwardBackward(rank, { model, sharded: root }, "a");
    assert.ok(root.units().every(({ unsharded }) => !unsharded));
    assert.ok(model.head.weight.grad !== undefined);
    assert.equal(model.layers[2]?.linear.weight.grad, undefined);
  });

  it("takes the outermost modules, each once, and refuses an empty list, containers and second times", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    const [layer] = model.layers;
    assert.ok(layer !== undefined);
    assert.deepEqual(fullyShard([layer.linear, layer, layer], { mesh: group }).modules, [layer]);
    assert.throws(() => fullyShard([], { mesh: group }), /Cannot shard an empty list: it has no modules; give those/);
    const list = new ModuleList([new Linear(device, 4, 4)]);
    assert.throws(
      () => fullyShard([model.head, list], { mesh: group }),
      /Cannot shard ModuleList: it has no forward; shard the modules/,
    );
    assert.throws(() => fullyShard([model.head, layer], { mesh: group }), /Cannot shard Layer: it was sharded before/);
    assert.equal(model.head.weight.storage.kind, "plain");
  });

  it("refuses a list as the root, and does it all again after dispose()", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    for (let turn = 0; turn < 2; turn++) {
      const handle = fullyShard([...model.layers, model.head], { mesh: group });
      initializeParameters(model, 0);
      using _frame = scope();
      assert.throws(
        () => model.call(input(device, "x", 1, WIDTH)),
        (error) =>
          error instanceof ArgumentError && /a root is one module; call fullyShard on the module/.test(error.message),
      );
      handle.dispose();
    }
  });
});

describe("ignoredParameters", () => {
  it("are neither sharded nor reduced, and may be replicated", async () => {
    const ends = valuesOf(await world(2, ignoreHead));
    assert.deepEqual(ends[0], ends[1]);
    for (const { kinds, reduced, same } of ends) {
      assert.deepEqual(kinds, ["sharded", "sharded", "replicated", "replicated"]);
      assert.ok(reduced.every((unit) => !unit.includes("head")));
      assert.ok(same, "the same gradients as when all is replicated");
    }
  });

  it("must be ignored by every unit around them", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    const [layer] = model.layers;
    assert.ok(layer !== undefined);
    const { weight } = layer.linear;
    fullyShard(layer, { mesh: group, ignoredParameters: [weight] });
    assert.equal(weight.storage.kind, "plain");
    assert.throws(
      () => fullyShard(model, { mesh: group }),
      /Cannot shard 'layers\.0\.linear\.weight': unit 'Layer' around it ignores it; give it in ignoredParameters/,
    );
    fullyShard(model, { mesh: group, ignoredParameters: [weight] });
    replicate(new Linear(device, 2, 2), { mesh: group });
    assert.equal(weight.storage.kind, "plain");
  });
});
