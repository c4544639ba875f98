/** The members of a module: fields of every kind, values that are refused, buffers, and training or evaluating. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ArgumentError } from "../../src/errors.ts";
import { openDevice } from "../../src/device/registry.ts";
import { ModuleDict, ModuleList } from "../../src/nn/container.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Linear } from "../../src/nn/linear.ts";
import { Module } from "../../src/nn/module.ts";
import { BufferTensor } from "../../src/tensor/buffer_tensor.ts";
import { ones } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const layer = (): Linear => new Linear(device, 2, 2, { bias: false });

/** A module of one field. */
class Holder<T> extends Module<[x: Tensor], unknown> {
  readonly field: T;
  readonly #give: (x: Tensor) => unknown;

  constructor(field: T, give: (x: Tensor) => unknown = (x) => x) {
    super();
    this.field = field;
    this.#give = give;
  }

  forward(x: Tensor): unknown {
    return this.#give(x);
  }
}

const namesOf = (field: unknown): string[] => [...new Holder(field).namedParameters()].map(([name]) => name);

describe("the fields of a module", () => {
  it("are looked into: arrays, plain objects, ModuleList and ModuleDict, nested", () => {
    assert.deepEqual(namesOf([[layer()], [layer(), layer()]]), [
      "field.0.0.weight",
      "field.1.0.weight",
      "field.1.1.weight",
    ]);
    assert.deepEqual(namesOf({ a: layer(), deep: { bEta: [layer()] } }), [
      "field.a.weight",
      "field.deep.bEta.0.weight",
    ]);
    assert.deepEqual(namesOf(new ModuleList([layer(), layer()])), ["field.0.weight", "field.1.weight"]);
    assert.deepEqual(namesOf(new ModuleDict({ left: layer(), Right: layer() })), [
      "field.left.weight",
      "field.Right.weight",
    ]);
    assert.deepEqual(namesOf({ sizes: [1, 2], text: "x", table: new Float32Array(3), nothing: undefined }), []);
  });

  it("are refused by name where parts would be hidden", () => {
    class Box {
      readonly inside: Linear = layer();
    }
    const hidden = [new Map([["a", layer()]]), new Set([layer()]), new Box()];
    for (const field of hidden) {
      const text = new RegExp(
        `Field 'field' is a ${field.constructor.name}, whose modules and parameters are not part`,
      );
      assert.throws(() => namesOf(field), (error) => error instanceof ArgumentError && text.test(error.message));
    }
    assert.deepEqual(namesOf(new Map([["a", 1]])), []);
  });
});

describe("what a forward gives", () => {
  it("may be tensors in arrays and plain objects, and is refused in anything else", () => {
    using _frame = scope();
    const x = ones(device, [1]);
    class Output {
      readonly hidden: Tensor = x;
    }
    const nested = new Holder(0, (given) => ({ all: [given.mul(2), { deep: given.mul(3) }], shape: [1], none: null }));
    const { all }: { all?: readonly [Tensor, { deep: Tensor }] } = Object(nested.call(x));
    assert.deepEqual([all?.[0].item(), all?.[1].deep.item()], [2, 3]);
    for (
      const [output, name] of [[new Output(), "Output"], [new Map(), "Map"], [Promise.resolve(), "Promise"]] as const
    ) {
      const message = new RegExp(`Holder.forward\\(\\) gave a ${name}: tensors in it would be freed`);
      assert.throws(() => new Holder(0, () => output).call(x), { name: "ArgumentError", message });
    }
  });
});

describe("containers", () => {
  it("ModuleList is read and grown like a list; neither has a forward", () => {
    const list = new ModuleList<Linear>();
    for (let i = 0; i < 3; i++) list.push(layer());
    assert.equal(list.length, 3);
    assert.equal([...list][2], list.at(-1));
    assert.equal(list.at(3), undefined);
    assert.throws(() => list.call(), /ModuleList has no forward: call the modules in it/);
    const dict = new ModuleDict({ a: layer() });
    assert.deepEqual([...dict].map(([name]) => name), ["a"]);
    assert.ok(dict.get("a") instanceof Linear && dict.get("b") === undefined);
  });
});

describe("buffers", () => {
  it("are named with the tree and initialized with it, and are no parameters", () => {
    const buffer = new BufferTensor(device, [3], { value: 1.5 });
    const model = new Holder({ scale: buffer, layer: layer() });
    initializeParameters(model, 0);
    assert.deepEqual([...model.namedBuffers()], [["field.scale", buffer]]);
    assert.deepEqual([...model.namedParameters()].map(([name]) => name), ["field.layer.weight"]);
    assert.deepEqual([buffer.fqn, buffer.persistent, buffer.requiresGrad], ["field.scale", true, false]);
    assert.deepEqual([...buffer.toArray()], [1.5, 1.5, 1.5]);
  });
});

describe("train() and eval()", () => {
  it("reach all modules below", () => {
    const model = new Holder([new Holder(layer())]);
    const modes = (): boolean[] => [...model.namedModules()].map(([, module]) => module.training);
    assert.deepEqual(modes(), [true, true, true]);
    assert.equal(model.eval(), model);
    assert.deepEqual(modes(), [false, false, false]);
    model.field[0]?.train();
    assert.deepEqual(modes(), [false, true, true]);
  });
});
