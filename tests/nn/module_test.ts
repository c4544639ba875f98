/**
 * Modules: names, hooks, what a call frees; layers and their initialization.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { float32, int32 } from "../../src/dtype.ts";
import { ArgumentError } from "../../src/errors.ts";
import { Embedding } from "../../src/nn/embedding.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Linear } from "../../src/nn/linear.ts";
import { Module } from "../../src/nn/module.ts";
import { tensorsIn } from "../../src/nn/tree.ts";
import { LayerNorm, RMSNorm } from "../../src/nn/norm.ts";
import { ones, tensor } from "../../src/tensor/create.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, toleranceOf } from "../support/allclose.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const inUse = (): number => device.allocator.stats.inUse;

class Block extends Module<[x: Tensor], { readonly out: Tensor; readonly all: readonly Tensor[] }> {
  readonly inProj: Linear;
  readonly postNorm: RMSNorm;
  readonly scaleByHead: Parameter = new Parameter(device, [1], { init: { kind: "constant", value: 2 } });
  readonly #hidden: Linear = new Linear(device, 9, 9);

  constructor() {
    super();
    this.inProj = new Linear(device, 3, 3);
    this.postNorm = new RMSNorm(device, 3);
    void this.#hidden;
  }

  forward(x: Tensor): { readonly out: Tensor; readonly all: readonly Tensor[] } {
    const projected = this.inProj.call(x);
    return { out: this.postNorm.call(projected).mul(this.scaleByHead), all: [projected, x] };
  }
}

class Root extends Module<[x: Tensor], Tensor> {
  readonly blocks: readonly Block[] = [new Block(), new Block()];
  readonly head: Linear;

  constructor() {
    super();
    const [first] = this.blocks;
    this.head = new Linear(device, 3, 3, {}, first?.inProj.weight);
  }

  forward(x: Tensor): Tensor {
    return this.head.call(this.blocks.reduce((hidden, block) => block.call(hidden).out, x));
  }
}

const NAMES = [
  "blocks.0.scale_by_head",
  "blocks.0.in_proj.weight",
  "blocks.0.in_proj.bias",
  "blocks.0.post_norm.weight",
];

test("namedParameters(): snake_case paths, lists by index, tied parameters once, private fields never", () => {
  const root = new Root();
  const names = [...root.namedParameters()].map(([name]) => name);
  assert.deepEqual(names.toSorted(), [...NAMES, ...NAMES.map((name) => name.replace("0", "1")), "head.bias"].sort());
  assert.deepEqual([...root.namedModules()].map(([name]) => name).slice(0, 4), [
    "",
    "blocks.0",
    "blocks.0.in_proj",
    "blocks.0.post_norm",
  ]);
  root.nameTree();
  assert.equal(root.head.weight.fqn, "blocks.0.in_proj.weight");
});

test("nameTree() refuses two parameters of one name", () => {
  class Clash extends Module<[], void> {
    readonly myWeight: Parameter = new Parameter(device, [1]);
    readonly my_weight: Parameter = new Parameter(device, [1]);
    forward(): void {}
  }
  assert.throws(() => new Clash().nameTree(), ArgumentError);
});

test("call() runs hooks around the forward, in the order registered, until they are removed", () => {
  using _frame = scope();
  const block = new Block();
  initializeParameters(block, 1);
  const seen: string[] = [];
  const removals = [
    block.registerForwardPreHook(([x]) => void seen.push(`before ${tensorsIn(x).length}`)),
    block.registerForwardPreHook(() => void seen.push("before too")),
    block.registerForwardHook((args, output) => void seen.push(`after ${args.length} ${tensorsIn(output).length}`)),
    block.inProj.registerForwardHook(() => void seen.push("inside")),
  ];
  block.call(ones(device, [2, 3]));
  assert.deepEqual(seen, ["before 1", "before too", "inside", "after 1 3"]);
  for (const remove of removals) remove();
  block.call(ones(device, [2, 3]));
  assert.equal(seen.length, 4);
});

test("call() frees what the forward made, but not what it returns or the backward needs", () => {
  const root = new Root();
  initializeParameters(root, 1);
  const before = inUse();
  {
    using _frame = scope();
    const x = ones(device, [2, 3]);
    const { out, all } = root.blocks[0]?.call(x) ?? {};
    assert.ok(out !== undefined && !out.disposed && all?.every((one) => !one.disposed));
    out.sum().backward();
    root.zeroGrad();
    root.call(x).sum().backward();
    assert.ok([...root.parameters()].every(({ grad }) => grad !== undefined));
    root.zeroGrad();
    assert.ok([...root.parameters()].every(({ grad }) => grad === undefined));
  }
  assert.equal(inUse(), before);
});

test("call() frees what the forward made when it fails", () => {
  class Fails extends Module<[x: Tensor], Tensor> {
    forward(x: Tensor): Tensor {
      x.add(1).exp();
      throw new Error("forward");
    }
  }
  using _frame = scope();
  const x = ones(device, [100]);
  const before = inUse();
  assert.throws(() => new Fails().call(x), /forward/);
  assert.equal(inUse(), before);
});

test("Linear, Embedding and norms compute what their names say", () => {
  using _frame = scope();
  const [linear, bare] = [new Linear(device, 2, 3), new Linear(device, 2, 3, { bias: false })];
  const table = new Embedding(device, 4, 2);
  const [rms, layer] = [new RMSNorm(device, 2), new LayerNorm(device, 2, { bias: false })];
  for (const module of [linear, bare, table, rms, layer]) initializeParameters(module, 3);
  const [w, b, x] = [linear.weight.toArray(), linear.bias?.toArray() ?? [], [0.5, -2]];
  const expected = [0, 1, 2].map((i) => (w[2 * i] ?? 0) * 0.5 - (w[2 * i + 1] ?? 0) * 2 + (b[i] ?? 0));
  allClose(linear.call(tensor(device, x)).toArray(), expected, toleranceOf(float32), "linear");
  assert.equal(bare.bias, undefined);
  const rows = table.call(tensor(device, [3, 0], { dtype: int32 })).toArray();
  assert.deepEqual([...rows], [...table.weight.toArray().slice(6), ...table.weight.toArray().slice(0, 2)]);
  allClose(
    rms.call(tensor(device, [3, 4])).toArray(),
    [3 / Math.sqrt(12.5), 4 / Math.sqrt(12.5)],
    toleranceOf(float32),
    "rms",
  );
  allClose(layer.call(tensor(device, [3, 5])).toArray(), [-1, 1], { relative: 1e-4, absolute: 0 }, "layer");
});

test("initializeParameters(): each element depends on the seed, the name and its place only", () => {
  const [one, two, other] = [new Root(), new Root(), new Root()];
  initializeParameters(one, 5);
  initializeParameters(two, 5);
  initializeParameters(other, 6);
  const valuesOf = (root: Module): Map<string, number[]> =>
    new Map([...root.namedParameters()].map(([name, parameter]) => [name, [...parameter.toArray()]]));
  const first = valuesOf(one);
  assert.deepEqual(valuesOf(two), first);
  const weight = "blocks.0.in_proj.weight";
  assert.notDeepEqual(valuesOf(other).get(weight), first.get(weight));
  assert.notDeepEqual(first.get("blocks.1.in_proj.weight"), first.get(weight));
  assert.deepEqual(first.get("blocks.0.post_norm.weight"), [1, 1, 1]);
  assert.deepEqual(first.get("blocks.0.scale_by_head"), [2]);
  const bound = 1 / Math.sqrt(3);
  assert.ok(first.get(weight)?.every((value) => Math.abs(value) <= bound) && new Set(first.get(weight)).size === 9);
});

test("initializeParameters(): normal and uniform have the moments asked for", () => {
  class Two extends Module<[], void> {
    readonly normal: Parameter = new Parameter(device, [200, 100], { init: { kind: "normal", mean: 1, std: 0.02 } });
    readonly uniform: Parameter = new Parameter(device, [200, 100], { init: { kind: "uniform", low: -2, high: 4 } });
    forward(): void {}
  }
  const module = new Two();
  initializeParameters(module, 11);
  for (const [parameter, mean, std] of [[module.normal, 1, 0.02], [module.uniform, 1, 6 / Math.sqrt(12)]] as const) {
    const values = Array.from(parameter.toArray());
    const average = values.reduce((sum, value) => sum + value, 0) / values.length;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - average) ** 2, 0) / values.length);
    allClose([average, deviation], [mean, std], { relative: 0.03, absolute: 0.03 * std }, "moments");
  }
});
