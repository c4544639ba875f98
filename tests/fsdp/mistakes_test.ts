/** Mistakes that would train wrongly without a word: each is refused, by name, on every rank. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Device } from "../../src/device/device.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import { int32 } from "../../src/dtype.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Linear } from "../../src/nn/linear.ts";
import type { Module } from "../../src/nn/module.ts";
import { clipGradNorm } from "../../src/optim/clip.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { writeParameters } from "../../src/tensor/write.ts";
import { openModel } from "../../src/train/open_model.ts";
import { ownedValues } from "../support/owned.ts";
import { valuesOf, world } from "../support/world.ts";
import { SIZES } from "../train/loop_ranks.ts";
import { differ, drawDifferently } from "./mistakes_ranks.ts";
import { Stack } from "./modules.ts";
import { openRank } from "./run.ts";

const input = (device: Device, value = 1): Tensor => tensor(device, [value, 2, 3, 4], { shape: [1, 4] });

function layerOf(device: Device): Linear {
  const layer = new Linear(device, 4, 4, { bias: false });
  layer.nameTree();
  return layer;
}

describe("a sharded module without values", () => {
  it("runs no forward and is not saved; nor when it was disposed and sharded again", async () => {
    const { device, group } = await openRank();
    const layer = layerOf(device);
    const first = fullyShard(layer, { mesh: group });
    const refusal = /'weight' has no values: call model\.load\(\), initializeParameters/;
    assert.throws(() => layer.call(input(device)), refusal);
    initializeParameters(layer, 0);
    layer.call(input(device));
    first.dispose();
    const second = fullyShard(layer, { mesh: group });
    assert.throws(() => layer.call(input(device)), refusal);
    initializeParameters(layer, 0);
    first.dispose(); // of the sharding before: nothing is left of it
    layer.call(input(device));
    second.dispose();

    const model = await openModel({ device, group }, SIZES);
    fullyShard(model, { mesh: group });
    await assert.rejects(model.save("runs/never"), /'model\.embed_tokens\.weight': it has no values/);
  });

  it("takes values by no copy from one rank", async () => {
    const { device, group } = await openRank();
    const layer = layerOf(device);
    fullyShard(layer, { mesh: group, reshardAfterForward: false });
    initializeParameters(layer, 0);
    layer.call(input(device));
    assert.throws(
      () => layer.weight.copyFromHost(new Float32Array(16)),
      /'weight', which is sharded: use writeParameters/,
    );
  });
});

describe("a sharded module's forward()", () => {
  it("says that the module is run by call()", async () => {
    const { device, group } = await openRank();
    const layer = layerOf(device);
    fullyShard(layer, { mesh: group });
    initializeParameters(layer, 0);
    assert.throws(
      () => layer.forward(input(device)),
      /^UseAfterDisposeError: 'Linear gathered parameters' has no memory: .*call model\.call\(x\), not model\.forward\(x\)/,
    );
    const model = await openModel({ device, group }, SIZES);
    fullyShard(model, { mesh: group });
    await model.load();
    const inputIds = tensor(device, [1, 2, 3, 4], { shape: [1, 4], dtype: int32 });
    assert.throws(() => model.forward({ inputIds }), /call model\.call\(x\), not model\.forward\(x\)/);
  });
});

describe("gradients that wait to be reduced", () => {
  for (const parallelize of [fullyShard, replicate]) {
    it(`are neither clipped nor stepped with, ${parallelize.name}()`, async () => {
      const { device, group } = await openRank();
      using _frame = scope();
      const layer = new Linear(device, 4, 4);
      layer.nameTree();
      const handle = parallelize(layer, { mesh: group });
      initializeParameters(layer, 0);
      const parameters = [...layer.parameters()];
      const optimizer = new SGD(parameters, { learningRate: 0.1 });
      handle.setRequiresGradientSync(false);
      layer.call(input(device)).sum().backward();
      for (const act of [() => clipGradNorm(parameters, 1), () => optimizer.step()]) {
        assert.throws(
          act,
          /Cannot .*: the gradient of 'weight' is not fully reduced: .*setRequiresGradientSync\(true\)/,
        );
      }
      assert.equal(layer.weight.grad, undefined);
      layer.weight.requiresGrad = false;
      handle.setRequiresGradientSync(true);
      layer.call(input(device)).sum().backward();
      assert.equal(layer.weight.grad, undefined, "what was never reduced counts nowhere");
      assert.ok(clipGradNorm(parameters, 1e9).item() > 0);
      optimizer.step();
    });
  }
});

describe("a backward after its parameters were written", () => {
  const modes: Readonly<Record<string, (layer: Module, mesh: Parameters<typeof fullyShard>[1]["mesh"]) => unknown>> = {
    plain: () => {},
    replicated: (layer, mesh) => replicate(layer, { mesh }),
    sharded: (layer, mesh) => fullyShard(layer, { mesh }),
    "sharded and kept": (layer, mesh) => fullyShard(layer, { mesh, reshardAfterForward: false }),
  };
  for (const [mode, parallelize] of Object.entries(modes)) {
    it(`is refused, ${mode}`, async () => {
      const { device, group } = await openRank();
      using _frame = scope();
      const layer = new Stack(device, 4, 2);
      parallelize(layer, group);
      initializeParameters(layer, 0);
      const optimizer = new SGD(layer.parameters(), { learningRate: 0.1 });
      const run = (): Tensor => layer.call(input(device)).square().sum();
      const [stale, fresh] = [run(), run()];
      fresh.backward();
      optimizer.step();
      assert.throws(() => stale.backward(), /Cannot run the backward of '\w+': '.*' was written after its forward/);
      optimizer.zeroGrad();
      run().backward();
      writeParameters(layer.parameters(), () => {});
    });
  }
});

describe("ranks that do different things", () => {
  for (const mode of ["fsdp", "ddp"] as const) {
    it(`are told who froze what and who skipped a step, ${mode}`, async () => {
      for (const error of errorsOrValues(await world(2, differ, { data: [mode, "freezes"] }))) {
        assert.match(error, /frozen on rank 1|different calls|made other/);
      }
      for (const error of errorsOrValues(await world(2, differ, { data: [mode, "skips a step"] }))) {
        assert.match(error, /have written the parameters of one module \d+, \d+ times|different calls/);
      }
    });

    it(`are told that they draw from different seeds, ${mode}`, async () => {
      for (const error of valuesOf(await world(2, drawDifferently, { data: mode }))) {
        assert.match(error, /Cannot draw a model from seeds 0, 1, by rank/);
      }
    });
  }
});

function errorsOrValues(ends: Awaited<ReturnType<typeof world<unknown, string>>>): readonly string[] {
  return ends.map(({ value, error }) => value ?? error ?? "");
}

describe("the gate of an update", () => {
  for (const order of ["bad first", "bad last"] as const) {
    it(`keeps back those whose norm was not finite and no others, ${order}`, async () => {
      const { device } = await openRank();
      using _frame = scope();
      const layers = { bad: layerOf(device), good: layerOf(device) };
      const optimizers = new Map(
        Object.values(layers).map((layer) => {
          initializeParameters(layer, 0);
          return [layer, new SGD(layer.parameters(), { learningRate: 0.1 })] as const;
        }),
      );
      layers.bad.call(input(device, NaN)).sum().backward();
      layers.good.call(input(device)).sum().backward();
      const before = [...ownedValues(layers.bad.weight)];
      const clip = {
        bad: () => assert.throws(() => clipOf(layers.bad), /norm is NaN/),
        good: () => clipOf(layers.good),
      };
      for (const which of order === "bad first" ? ["bad", "good"] as const : ["good", "bad"] as const) clip[which]();
      for (const optimizer of optimizers.values()) optimizer.step();
      assert.deepEqual([...ownedValues(layers.bad.weight)], before);
      assert.notDeepEqual([...ownedValues(layers.good.weight)], before);
      layers.bad.zeroGrad();
      layers.bad.call(input(device)).sum().backward();
      optimizers.get(layers.bad)?.step();
      assert.notDeepEqual([...ownedValues(layers.bad.weight)], before, "the next gradients have a gate of their own");
    });
  }
});

function clipOf(layer: Module): Tensor {
  return clipGradNorm(layer.parameters(), 1, { errorIfNonfinite: true });
}
