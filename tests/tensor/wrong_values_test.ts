/**
 * Wrong values that code without types passes for a tensor, a number or a list: each is refused in one sentence, by value. And dims
 * of tensors that have none, as PyTorch takes them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { AdamW, SGD, tensor } from "../../mod.ts";
import * as train from "../../mod.ts";
import { ArgumentError, ShapeError } from "../../doors/errors.ts";
import { openDevice } from "../../doors/device.ts";
import * as nn from "../../doors/nn.ts";
import { scope, type Tensor } from "../../mod.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 26 });
after(() => device.dispose());

/** Calls a function of an object as a program does whose types nobody has checked. */
function callOf(target: object, name: string, ...given: readonly unknown[]): unknown {
  const found: unknown = Reflect.get(target, name);
  return typeof found === "function" ? Reflect.apply(found, target, given) : assert.fail(`there is no ${name}`);
}

function refused(run: () => unknown, message: string): void {
  assert.throws(run, (error) => {
    assert.ok(error instanceof ArgumentError, String(error));
    assert.equal(error.message, message);
    return true;
  });
}

/** Values that are neither a tensor nor a number, as messages show them. */
const OTHERS: readonly (readonly [unknown, string])[] = [
  [null, "null"],
  ["a", '"a"'],
  [true, "true"],
  [5n, "5n"],
  [[1, 2], "an array"],
  [{}, "an object"],
  [Object.create(null), "an object"],
  [new Float32Array(2), "an instance of Float32Array"],
  [Math.max, "a function"],
];

test("methods of tensors and functions of tensors refuse what is no tensor", () => {
  using _frame = scope();
  const x = tensor(device, [1, 2, 3, 4], { shape: [2, 2] });
  const binary = ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "eq", "ne", "lt", "le", "gt", "ge"];
  for (const [other, shown] of [...OTHERS, [undefined, "undefined"] as const]) {
    for (const name of [...binary, "logicalAnd", "logicalOr"]) {
      refused(() => callOf(x, name, other), `Cannot apply '${name}' to ${shown}: expected a tensor or a number`);
    }
    const number = `Cannot apply 'maskedFill' to ${shown}: expected a tensor or a number`;
    refused(() => callOf(x, "maskedFill", x.gt(0), other), number);
    refused(() => callOf(x, "maskedFill", other, 0), `Cannot apply 'where' to ${shown}: expected a tensor`);
    refused(() => callOf(x, "matmul", other), `Cannot apply 'matmul' to ${shown}: expected a tensor`);
    refused(() => callOf(x, "gather", 0, other), `Cannot apply 'gather' to ${shown}: expected a tensor`);
    const index = `Cannot apply 'indexSelect' to ${shown}: expected an index tensor`;
    refused(() => callOf(x, "indexSelect", 0, other), index);
    refused(() => callOf(nn, "mseLoss", x, other), `Cannot apply 'mseLoss' to ${shown}: expected a tensor`);
    refused(() => callOf(nn, "crossEntropy", x, other), `Cannot apply 'crossEntropy' to ${shown}: expected a tensor`);
    refused(() => callOf(nn, "cat", [x, other]), `Cannot apply 'cat' to ${shown}: expected a tensor`);
    refused(() => callOf(nn, "stack", [x, other]), `Cannot apply 'stack' to ${shown}: expected a tensor`);
    refused(() => callOf(nn, "where", x, other, x), `Cannot apply 'where' to ${shown}: expected a tensor or a number`);
    if (other !== undefined) {
      const seed = `Cannot apply 'backward' to ${shown}: expected a gradient that is a tensor`;
      refused(() => callOf(x, "backward", other), seed);
    }
    const layer = new nn.Linear(device, 2, 2);
    nn.initializeParameters(layer, 0);
    refused(() => callOf(layer, "call", other), `Cannot apply 'linear' to ${shown}: expected a tensor`);
  }
});

test("methods of tensors refuse what is no list of dims or sizes", () => {
  using _frame = scope();
  const x = tensor(device, [1, 2, 3, 4], { shape: [2, 2] });
  for (const [other, shown] of OTHERS) {
    if (Array.isArray(other)) continue;
    for (const name of ["sum", "mean", "max", "min", "var", "std"]) {
      const op = name === "var" || name === "std" ? "mean" : name;
      const expected = "expected a dim, a list of dims, or nothing for all of them";
      refused(() => callOf(x, name, other), `Cannot apply '${op}' with ${shown}: ${expected}`);
    }
    refused(() => callOf(x, "permute", other), `Cannot apply 'permute' with ${shown}: expected a list of dims`);
    for (const name of ["reshape", "expand"]) {
      refused(() => callOf(x, name, other), `Cannot apply '${name}' with ${shown}: expected a list of sizes`);
    }
    const correction = `Cannot take a variance with correction ${shown}: give a number`;
    refused(() => callOf(x, "var", 0, false, other), correction);
    refused(() => callOf(x, "std", 0, false, other), correction);
  }
});

test("settings that are numbers take no null and no text", () => {
  const layer = new nn.Linear(device, 2, 2);
  const make = (type: typeof AdamW | typeof SGD, options: object): unknown =>
    Reflect.construct(type, [layer.parameters(), options]);
  for (const [other, shown] of [...OTHERS, [NaN, "NaN"] as const, [Infinity, "Infinity"] as const]) {
    for (const key of ["learningRate", "eps", "weightDecay", "betas"]) {
      if (key === "betas" && Array.isArray(other)) continue;
      assert.throws(() => make(AdamW, { [key]: other }), (error) => {
        assert.ok(error instanceof ArgumentError && error.message.includes(`${key} ${shown}`), String(error));
        return true;
      });
    }
    assert.throws(() => make(AdamW, { betas: [0.9, other] }), /Cannot use .*the two betas must be below 1/);
    for (const key of ["learningRate", "momentum", "dampening", "weightDecay"]) {
      assert.throws(() => make(SGD, { [key]: other }), (error) => {
        assert.ok(error instanceof ArgumentError && error.message.includes(`${key} ${shown}`), String(error));
        return true;
      });
    }
    for (const name of ["cosine", "linear", "constant"]) {
      const expected = `Cannot end a schedule at ${shown} of the learning rate: minRatio must be a number from 0 to 1`;
      refused(() => callOf(train, name, { steps: 9, minRatio: other }), expected);
      assert.throws(() => callOf(train, name, { steps: other }), ArgumentError);
      assert.throws(() => callOf(train, name, { steps: 9, warmupSteps: other }), ArgumentError);
    }
    for (const key of ["initScale", "growthFactor", "backoffFactor", "growthInterval"]) {
      if (key === "growthFactor" && other === Infinity) continue;
      assert.throws(() => Reflect.construct(train.GradScaler, [device, { [key]: other }]), ArgumentError);
    }
    const drop = `Cannot drop out with p ${shown}: it must be a probability, from 0 to 1`;
    refused(() => Reflect.construct(nn.Dropout, [other]), drop);
    if (other === Infinity) continue;
    const clip = `Cannot clip to norm ${shown}: it must be a positive number`;
    refused(() => callOf(train, "clipGradNorm", layer.parameters(), other), clip);
  }
  assert.throws(() => make(AdamW, { betas: [0.9] }), /the two betas/);
  assert.throws(() => make(SGD, { nesterov: null }), /Cannot use nesterov null: it must be true or false/);
});

test("reductions along an empty list of dims reduce all of them, as in PyTorch", () => {
  using _frame = scope();
  const x = tensor(device, [0, 1, 2, 3, 4, 5], { shape: [2, 3] });
  const results: readonly (readonly [(keepDims: boolean) => Tensor, number])[] = [
    [(keep) => x.sum([], keep), 15],
    [(keep) => x.mean([], keep), 2.5],
    [(keep) => x.max([], keep), 5],
    [(keep) => x.min([], keep), 0],
    [(keep) => x.var([], keep), 3.5],
    [(keep) => x.std([], keep), Math.fround(Math.sqrt(3.5))],
  ];
  for (const [run, expected] of results) {
    assert.deepEqual([run(false).item(), run(false).shape, run(true).shape], [expected, [], [1, 1]]);
  }
});

test("a tensor without dims is worked along by dim 0 and dim -1, as in PyTorch", () => {
  const x = leaf(device, { shape: [], data: [2] });
  using _frame = scope();
  const results: readonly (readonly [string, number, gradient: number | undefined])[] = [
    ["sum", 2, 1],
    ["mean", 2, 1],
    ["max", 2, 1],
    ["min", 2, 1],
    ["cumsum", 2, 1],
    ["softmax", 1, 0],
    ["logSoftmax", 0, 0],
    ["argmax", 0, undefined],
    ["squeeze", 2, 1],
  ];
  const along = (name: string, ...given: readonly unknown[]): Tensor => {
    const result = callOf(x, name, ...given);
    return result instanceof train.Tensor ? result : assert.fail(name);
  };
  for (const [name, expected, gradient] of results) {
    for (const dim of [0, -1]) {
      const y = along(name, dim);
      assert.deepEqual([y.item(), y.shape], [expected, []], `${name}(${dim})`);
      if (gradient === undefined) continue;
      x.zeroGrad();
      y.backward();
      assert.equal(x.grad?.item(), gradient, `gradient of ${name}(${dim})`);
    }
    for (const dim of [1, -2, 0.5]) {
      assert.throws(() => along(name, dim), (error) => {
        assert.ok(
          error instanceof ShapeError && error.message.includes(`dim ${dim} must be in [-1, 1)`),
          String(error),
        );
        return true;
      });
    }
  }
  for (const name of ["sum", "mean", "max", "min"]) {
    for (const dims of [[], [0], [-1]]) assert.equal(along(name, dims, true).item(), 2);
    for (const dims of [[0, 0], [0, -1]]) assert.throws(() => along(name, dims), /must name each dim once/);
  }
  assert.equal(along("var", 0, false, 0).item(), 0);
  assert.ok(Number.isNaN(along("var", 0).item()));
  assert.equal(x.transpose(0, -1).item(), 2);
  disposeLeaf(x);
});
