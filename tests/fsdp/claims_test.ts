/** The parameters that a unit claims: tied, frozen and unused ones, and calls that are refused. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import {
  AdamW,
  bfloat16,
  describeSharding,
  float16,
  fullyShard,
  gradNorm,
  replicate,
  scope,
  type Tensor,
} from "../../mod.ts";
import { ArgumentError } from "../../doors/errors.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { initializeParameters, Linear, Module, ModuleList } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { valuesOf, world } from "../support/world.ts";
import { forwardBackward, shardStack, WIDTH } from "./life_cycle_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { mergeTied } from "./claims_ranks.ts";
import { openRank } from "./run.ts";
import type { Rank } from "./scenarios.ts";

/** Two layers of which a test uses one. */
class TwoHeads extends Module<[x: Tensor], readonly [Tensor, Tensor]> {
  readonly left: Linear;
  readonly right: Linear;

  constructor(device: Rank["device"]) {
    super();
    this.left = new Linear(device, WIDTH, WIDTH);
    this.right = new Linear(device, WIDTH, WIDTH);
  }

  forward(x: Tensor): readonly [Tensor, Tensor] {
    return [this.left.call(x), this.right.call(x)];
  }
}

/** Two layers with one weight. */
class Tied extends Module<[x: Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;

  constructor(device: Rank["device"]) {
    super();
    this.first = new Linear(device, WIDTH, WIDTH, { bias: false });
    this.second = new Linear(device, WIDTH, WIDTH, { bias: false }, this.first.weight);
  }

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x).tanh());
  }
}

describe("units of fullyShard()", () => {
  it("takes a mesh of one axis or of two, and refuses one of three", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    const [square, cube] = [{ replicate: 1, shard: 1 }, { data: 1, replicate: 1, shard: 1 }]
      .map((shape) => deviceMesh(group, shape));
    assert.ok(square !== undefined && cube !== undefined);
    for (const [parallelize, mesh] of [[fullyShard, cube], [replicate, square], [replicate, cube]] as const) {
      assert.throws(() => parallelize(model, { mesh }), {
        name: "UnsupportedError",
        message: /over a mesh of .*replicate × shard: .* would train different models; give a mesh of one axis/,
      });
    }
    for (const mesh of [square, deviceMesh(group, { shard: 1 })]) {
      const handle = fullyShard(model, { mesh });
      assert.equal(handle.unit.policy.group, group);
      handle.dispose();
    }
  });

  it("are described with their sizes and padding", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    assert.throws(() => describeSharding(model), /Cannot describe Stack: it is not sharded/);
    const precision = { paramDtype: float16, reduceDtype: bfloat16 };
    for (const layer of model.layers) fullyShard(layer, { mesh: group, precision });
    fullyShard(model, { mesh: group });
    initializeParameters(model, 5);
    const { units: [root, block] } = describeSharding(model);
    const wide = { storage: "float32", compute: "float32", reduce: "float32", master: "float32", gradient: "float32" };
    assert.deepEqual(block?.dtypes, { ...wide, storage: "float16", compute: "float16", reduce: "bfloat16" });
    assert.deepEqual([root?.name, block?.name], ["Stack", "layers.0"]);
    const [numel, padding, bytesPerRank] = [WIDTH * WIDTH + WIDTH, 48 + 44, 4 * 512];
    const sizes = {
      name: "Stack",
      depth: 0,
      numParameters: 2,
      numel,
      padding,
      worldSize: 1,
      replicas: 1,
      bytesPerRank,
    };
    assert.deepEqual(root, { ...sizes, dtypes: wide, reshardAfterForward: false });
  });

  it("shards a root whose parameters all belong to units below", async () => {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 2);
    for (const unit of [...model.layers, model.head]) fullyShard(unit, { mesh: rank.group });
    const sharded = fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    assert.equal(sharded.units().length, 4);
    assert.equal(sharded.units()[0], sharded.unit);
    using _frame = scope();
    model.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
    assert.ok([...model.parameters()].every(({ grad }) => grad !== undefined));
  });

  it("refuses what cannot be sharded", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    fullyShard(model, { mesh: group });
    const again = /Cannot shard Stack: it was sharded before, as unit 'Stack'/;
    assert.throws(
      () => fullyShard(model, { mesh: group }),
      (error) => error instanceof ArgumentError && again.test(error.message),
    );
    const [layer] = model.layers;
    assert.ok(layer !== undefined);
    assert.throws(
      () => fullyShard(layer, { mesh: group }),
      /Cannot shard Layer: unit 'Stack' holds its parameters; shard inner/,
    );
    assert.throws(() => replicate(model, { mesh: group }), /Cannot replicate '.*': it is sharded already/);

    const list = new ModuleList([new Linear(device, 4, 4)]);
    assert.throws(
      () => fullyShard(list, { mesh: group }),
      /Cannot shard ModuleList: it has no forward; shard the modules/,
    );

    const replicated = new Linear(device, 4, 4);
    replicate(replicated, { mesh: group });
    assert.throws(() => fullyShard(replicated, { mesh: group }), /Cannot shard 'weight': it is replicated already/);

    const early = new Stack(device, WIDTH, 2);
    for (const block of early.layers) fullyShard(block, { mesh: group });
    fullyShard(early, { mesh: group });
    initializeParameters(early, 0);
    using _frame = scope();
    early.layers[1]?.call(input(device, "x", 1, WIDTH));
    assert.throws(
      () => early.call(input(device, "x", 1, WIDTH)),
      /its submodule 'layers.1' ran a forward first and became a root.*Run the root module's forward first/s,
    );
  });

  it("refuses a tied weight that two siblings would use, and takes it in one", async () => {
    const { device, group } = await openRank();
    const other = new Tied(device);
    fullyShard(other.first, { mesh: group });
    assert.throws(
      () => fullyShard(other.second, { mesh: group }),
      /Cannot shard Linear: unit 'Linear' holds its parameters;.*tied parameters by one call/,
    );
    const beside = new ModuleList([other.second, new Linear(device, WIDTH, WIDTH)]);
    assert.throws(
      () => fullyShard([...beside], { mesh: group }),
      /Cannot shard 'weight': it is tied to 'parameter', which unit 'Linear' holds.*call fullyShard once, on the list of the modules that use it/,
    );

    const whole = new Tied(device);
    fullyShard(whole, { mesh: group });
    initializeParameters(whole, 3);
    const plain = new Tied(device);
    initializeParameters(plain, 3);
    using _frame = scope();
    for (const model of [whole, plain]) model.call(input(device, "x", 2, WIDTH)).sum().backward();
    assert.deepEqual(gradients(whole.parameters()), gradients(plain.parameters()));
  });

  for (const [ranks, early, isOffloaded] of [[1, false], [1, true], [3, true], [3, true, true]] as const) {
    const when = early ? "that has values" : "before it has values";
    const where = isOffloaded ? ", offloaded" : "";
    it(`merges a unit below whose weight is tied, ${when}, on ${ranks} ranks${where}`, async () => {
      const data = { early, isOffloaded: isOffloaded === true };
      for (const [rank, ended] of valuesOf(await world(ranks, mergeTied, { data })).entries()) {
        const { units, reports, names, calls, same } = ended;
        assert.deepEqual(units, ["TiedPair"]);
        assert.deepEqual(
          reports,
          rank === 0 ? ["Unit 'first' becomes part of the unit of TiedPair, which uses 'first.weight' too"] : [],
        );
        assert.deepEqual(names, ["first.weight", "first.bias", "second.bias"]);
        assert.deepEqual(calls, [`${isOffloaded ? "all-gather" : "gather"} TiedPair`, "reduce-scatter TiedPair"]);
        assert.deepEqual(same, { values: true, gradients: true });
      }
    });
  }

  it("gathers frozen parameters but gives them no gradient and leaves them as they are", async () => {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 2);
    for (const parameter of model.layers[0]?.parameters() ?? []) parameter.requiresGrad = false;
    const bias = model.layers[1]?.linear.bias;
    if (bias !== undefined) bias.requiresGrad = false;
    for (const layer of model.layers) fullyShard(layer, { mesh: rank.group });
    fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    const frozen = [...model.parameters()].filter(({ requiresGrad }) => !requiresGrad);
    const before = frozen.map(ownedValues);
    const optimizer = new AdamW(model.parameters());
    for (let step = 0; step < 2; step++) {
      using _frame = scope();
      optimizer.zeroGrad();
      model.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
      assert.deepEqual(frozen.map(({ grad }) => grad), [undefined, undefined, undefined]);
      assert.ok(gradNorm(model.parameters()).item() > 0);
      optimizer.step();
    }
    assert.deepEqual(frozen.map(ownedValues), before);
    if (bias !== undefined) bias.requiresGrad = true;
    using _frame = scope();
    model.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
    assert.ok(bias?.grad !== undefined, "trained again");
  });

  it("gives no gradient to a unit that is not reached, nor to a parameter that no rank used", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 3 });
    stack.model.order = [0, 2];
    forwardBackward(rank, stack, "a");
    const skipped = stack.model.layers[1]?.linear;
    assert.equal(skipped?.weight.grad, undefined);
    assert.ok(stack.model.layers[0]?.linear.weight.grad !== undefined);
    const before = ownedValues(skipped?.weight);
    new AdamW(stack.model.parameters()).step();
    assert.deepEqual(ownedValues(skipped?.weight), before, "the optimizer leaves it alone");

    const two = new TwoHeads(rank.device);
    fullyShard(two, { mesh: rank.group });
    initializeParameters(two, 1);
    using _frame = scope();
    const [left] = two.call(input(rank.device, "x", 2, WIDTH));
    left?.sum().backward();
    assert.ok(two.left.weight.grad?.toArray().some((value) => value !== 0));
    assert.equal(two.right.weight.grad, undefined);
  });
});
