/** Casts of mixed precision at a module's boundary, and values that it does not cast, sharded and replicated. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { dtypeFrom } from "../../doors/device.ts";
import { BufferTensor, initializeParameters, Linear, Module, zeros } from "../../doors/nn.ts";
import {
  bfloat16,
  type DType,
  float16,
  float32,
  fullyShard,
  int32,
  type MixedPrecision,
  noGrad,
  replicate,
  scope,
  SGD,
  type Tensor,
} from "../../mod.ts";
import { byteLengthOf } from "../../src/comm/call.ts";
import { ownedValues } from "../support/owned.ts";
import { input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

const WIDTH = 4;

/** The arguments that a module received. */
interface Given {
  readonly x: Tensor;
  readonly rest: readonly (Tensor | undefined)[];
}

/** Tells the dtypes that it sees. */
class Seer extends Module<[given: Given, table: Tensor], Tensor> {
  readonly linear: Linear;
  seen: readonly string[] = [];

  constructor(device: Linear["weight"]["device"]) {
    super();
    this.linear = new Linear(device, WIDTH, WIDTH);
  }

  forward({ x, rest }: Given, table: Tensor): Tensor {
    this.seen = [x, ...rest, table].map((tensor) => tensor?.dtype.name ?? "none");
    return this.linear.call(x);
  }
}

for (const parallelize of [fullyShard, replicate]) {
  describe(`${parallelize.name}() with mixed precision`, () => {
    const run = async (precision: MixedPrecision): Promise<{ seen: readonly string[]; out: DType }> => {
      const { device, group } = await openRank();
      const model = new Seer(device);
      parallelize(model, { mesh: group, precision });
      initializeParameters(model, 1);
      using _frame = scope();
      const table = new BufferTensor(device, [WIDTH]);
      table.materialize();
      const rest = [zeros(device, [2]), zeros(device, [2], int32), undefined];
      const out = noGrad(() => model.call({ x: input(device, "x", 2, WIDTH), rest }, table));
      assert.equal(out.toArray().length, 2 * WIDTH, "what is given survives the call");
      table.dispose();
      return { seen: model.seen, out: out.dtype };
    };

    it("casts float inputs, wherever they lie, but no integers and no buffers", async () => {
      const { seen, out } = await run({ paramDtype: bfloat16 });
      assert.deepEqual(seen, ["bfloat16", "bfloat16", "int32", "none", "float32"]);
      assert.equal(out, bfloat16);
    });

    it("casts float outputs where outputDtype is given", async () => {
      assert.equal((await run({ paramDtype: bfloat16, outputDtype: float32 })).out, float32);
      assert.equal((await run({ outputDtype: bfloat16 })).out, bfloat16);
    });

    it("casts no inputs where it is told not to, or no paramDtype is given", async () => {
      await assert.rejects(run({ paramDtype: bfloat16, castForwardInputs: false }), /float32.*bfloat16/);
      assert.equal((await run({ reduceDtype: bfloat16 })).seen[0], "float32");
    });

    it("refuses dtypes that nothing computes in, by the name of the key", async () => {
      const { device, group } = await openRank();
      for (const key of ["paramDtype", "reduceDtype", "outputDtype"]) {
        assert.throws(
          () => parallelize(new Linear(device, 2, 2), { mesh: group, precision: { [key]: dtypeFrom("float64") } }),
          new RegExp(`Cannot use float64 as ${key}: it must be float32, bfloat16, float16`),
        );
        const precision: MixedPrecision = JSON.parse(`{ "${key}": "bfloat16" }`);
        assert.throws(
          () => parallelize(new Linear(device, 2, 2), { mesh: group, precision }),
          new RegExp(`Cannot apply '${key}' as a dtype is a value, such as float32 of 'fullyshard'.*bfloat16`),
        );
      }
    });
  });
}

describe("fullyShard() with a precision of one unit", () => {
  for (const paramDtype of [bfloat16, float16]) {
    it(`computes one layer in ${paramDtype.name} and gives the rest float32, forward and backward`, async () => {
      const { device, group } = await openRank();
      const model = new Stack(device, WIDTH, 3);
      const seen: string[] = [];
      const [, second] = model.layers;
      assert.ok(second !== undefined);
      fullyShard(second, { mesh: group, precision: { paramDtype, outputDtype: float32 } });
      fullyShard(model, { mesh: group });
      for (const layer of model.layers) {
        layer.linear.registerForwardPreHook(([x]) =>
          void (x instanceof Object && "dtype" in x && seen.push(nameOf(x.dtype)))
        );
      }
      initializeParameters(model, 5);
      const twin = new Stack(device, WIDTH, 3);
      initializeParameters(twin, 5);
      using _frame = scope();
      for (const stack of [model, twin]) {
        const out = stack.call(input(device, "x", 2, WIDTH));
        assert.equal(out.dtype, float32);
        out.sum().backward();
      }
      assert.deepEqual(seen, ["float32", paramDtype.name, "float32"]);
      const others = [...twin.parameters()];
      for (const [i, { grad, fqn }] of [...model.parameters()].entries()) {
        const expected = others[i]?.grad?.toArray() ?? [];
        assert.equal(grad?.dtype, float32);
        grad.toArray().forEach((value, k) => {
          const wanted = expected[k] ?? NaN;
          assert.ok(
            Math.abs(value - wanted) <= 0.02 * (1 + Math.abs(wanted)),
            `${fqn}[${k}] is ${value}, not ${wanted}`,
          );
        });
      }
    });
  }
});

function nameOf(value: unknown): string {
  return value instanceof Object && "name" in value ? String(value.name) : "";
}

describe("replicate() with mixed precision", () => {
  for (
    const [paramDtype, reduceDtype] of [[bfloat16, float32], [bfloat16, bfloat16], [float16, float32], [
      float16,
      float16,
    ]] as const
  ) {
    it(`keeps float32 values, computes with copies in ${paramDtype.name}, and reduces in ${reduceDtype.name}`, async () => {
      const { device, group, calls } = await openRank();
      const model = new Stack(device, WIDTH, 1);
      initializeParameters(model, 5);
      const values = [...model.parameters()].map(ownedValues);
      const replicated = replicate(model, { mesh: group, precision: { paramDtype, reduceDtype } });
      const { weight } = model.head;
      assert.equal(weight.dtype, paramDtype);
      assert.deepEqual([...model.parameters()].map(ownedValues), values);
      const optimizer = new SGD(model.parameters(), { learningRate: 1e-4 });
      const losses: number[] = [];
      for (let step = 0; step < 3; step++) {
        using _frame = scope();
        calls.length = 0;
        optimizer.zeroGrad();
        const loss = model.call(input(device, "x", 2, WIDTH)).square().mean();
        loss.backward();
        losses.push(loss.item());
        assert.equal(weight.grad?.dtype, float32);
        const [call] = calls.filter(({ kind }) => kind === "all-reduce");
        assert.ok(call !== undefined && byteLengthOf(call) === call.count * reduceDtype.byteLength);
        optimizer.step();
        const [own, computed] = [ownedValues(weight), weight.toArray()];
        own.forEach((value, i) => assert.ok(Math.abs((computed[i] ?? NaN) - value) <= Math.abs(value) / 256));
        assert.ok(own.some((value, i) => value !== computed[i]), "values hold more than the copies can");
      }
      const trained = ownedValues(weight);
      optimizer.dispose();
      replicated.dispose();
      assert.equal(weight.dtype, float32);
      assert.deepEqual(Float32Array.from(weight.toArray()), Float32Array.from(trained), "dispose() keeps the values");
      assert.equal(losses.length, 3);
      for (const parameter of model.parameters()) parameter.dispose();
      assert.equal(device.allocator.stats.inUse, 0, "no copy outlives the replication");
    });
  }
});
