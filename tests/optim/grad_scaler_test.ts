/** Training in float16 with a scaled loss: PyTorch's trace, and an overflow on one rank that skips the step on all. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import * as z from "zod";
import {
  clipGradNorm,
  float16,
  float32,
  fullyShard,
  gradNorm,
  GradScaler,
  replicate,
  scope,
  SGD,
  type Tensor,
  tensor,
} from "../../mod.ts";
import { initializeParameters, Linear, Module, type Parameter } from "../../doors/nn.ts";
import type { Device } from "../../doors/device.ts";
import { openRank } from "../fsdp/run.ts";
import { allClose } from "../support/allclose.ts";
import { readGolden, readJson } from "../support/golden.ts";
import { ownedValues } from "../support/owned.ts";
import { valuesOf, world } from "../support/world.ts";
import { trainScaled } from "./grad_scaler_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

const golden = await readGolden("float16/expected.safetensors");
const expected = z.object({
  max_norm: z.number(),
  learning_rate: z.number(),
  scaler: z.object({
    init_scale: z.number(),
    growth_factor: z.number(),
    backoff_factor: z.number(),
    growth_interval: z.number(),
  }),
  steps: z.array(z.object({ loss: z.number(), norm: z.number().nullable(), scale: z.number() })),
}).parse(readJson("float16/expected.json"));
const { init_scale: initScale, growth_factor: growthFactor } = expected.scaler;
const { backoff_factor: backoffFactor, growth_interval: growthInterval } = expected.scaler;
const SETTINGS = { initScale, growthFactor, backoffFactor, growthInterval };

/** The training of the fixture's script. */
class Pair extends Module<[x: Tensor], Tensor> {
  readonly linear0: Linear;
  readonly linear1: Linear;

  constructor(device: Device) {
    super();
    const [[hidden = 0, width = 0], [out = 0]] = [
      golden.get("init.linear0.weight").shape,
      golden.get("init.linear1.weight").shape,
    ];
    this.linear0 = new Linear(device, width, hidden);
    this.linear1 = new Linear(device, hidden, out);
    for (const [name, parameter] of this.namedParameters()) {
      parameter.materialize();
      parameter.copyFromHost(golden.floats(`init.${name}`));
    }
  }

  forward(x: Tensor): Tensor {
    return this.linear1.call(this.linear0.call(x).tanh());
  }
}

/** Actions between a backward and the scaler's step. */
const NORMS: readonly [string, (scaler: GradScaler, optimizer: SGD, parameters: readonly Parameter[]) => void][] = [
  ["clipped after unscale()", (scaler, optimizer, parameters) => {
    scaler.unscale(optimizer);
    clipGradNorm(parameters, 1);
  }],
  ["where another norm is taken after clipping", (scaler, _optimizer, parameters) => {
    clipGradNorm(parameters, 1, { scaler });
    gradNorm(parameters);
  }],
  ["where a part is clipped after unscale()", (scaler, optimizer, parameters) => {
    scaler.unscale(optimizer);
    clipGradNorm(parameters.slice(1), 1);
  }],
];

describe("GradScaler", () => {
  for (const parallelize of [fullyShard, replicate]) {
    it(`takes the steps that PyTorch takes in float16, and skips those that it skips, after ${parallelize.name}()`, async () => {
      const { device, group } = await openRank();
      const model = new Pair(device);
      parallelize(model, {
        mesh: group,
        precision: { paramDtype: float16, reduceDtype: float32, outputDtype: float32 },
      });
      const optimizer = new SGD(model.parameters(), { learningRate: expected.learning_rate });
      using scaler = new GradScaler(device, SETTINGS);
      const [x, y] = ["x", "y"].map((name) => golden.get(name));
      assert.ok(x !== undefined && y !== undefined);
      for (const [step, { loss, norm, scale }] of expected.steps.entries()) {
        using _frame = scope();
        optimizer.zeroGrad();
        const out = model.call(tensor(device, x.data, { shape: x.shape }));
        const own = out.sub(tensor(device, y.data, { shape: y.shape })).square().mean();
        scaler.scale(own).backward();
        const ownNorm = clipGradNorm(model.parameters(), expected.max_norm, { scaler }).item();
        scaler.step(optimizer);
        scaler.update();
        allClose([own.item()], [loss], { relative: 2e-4, absolute: 0 }, `loss of step ${step}`);
        if (norm === null) assert.ok(!Number.isFinite(ownNorm), `step ${step} did not overflow`);
        else allClose([ownNorm], [norm], { relative: 1e-3, absolute: 0 }, `norm of step ${step}`);
        assert.equal(scaler.getScale(), scale, `scale after step ${step}`);
      }
      for (const [name, parameter] of model.namedParameters()) {
        allClose(ownedValues(parameter), golden.floats(`final.${name}`), { relative: 1e-3, absolute: 1e-4 }, name);
      }
    });
  }

  for (const [parallelism, clips] of [["fsdp", true], ["fsdp", false], ["ddp", true]] as const) {
    it(`skips a step on all of 3 ranks where one overflows, ${parallelism}, ${clips ? "" : "not "}clipped`, async () => {
      const ranks = valuesOf(await world(3, trainScaled, { data: [parallelism, clips] as const }));
      for (const steps of ranks) {
        assert.deepEqual(steps.map(({ scale }) => scale), [1024, 512, 512, 1024]);
        assert.deepEqual(steps.map(({ changed }) => changed), [true, false, true, true]);
        assert.deepEqual(steps.map(({ optimizerSteps }) => optimizerSteps), [1, 1, 2, 3]);
        assert.deepEqual(
          steps.map(({ norm }) => Number.isFinite(norm)),
          clips ? [true, false, true, true] : [false, false, false, false],
        );
      }
      assert.deepEqual(
        ranks.map((steps) => steps.map(({ norm }) => norm)),
        ranks.map(() => ranks[0]?.map(({ norm }) => norm)),
      );
    });
  }

  for (const [after, act] of NORMS) {
    it(`skips a step whose gradients overflowed, also ${after}`, async () => {
      const { device, group } = await openRank();
      using _frame = scope();
      const model = new Linear(device, 2, 2);
      fullyShard(model, { mesh: group });
      initializeParameters(model, 0);
      const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
      using scaler = new GradScaler(device);
      const before = ownedValues(model.weight);
      scaler.scale(model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum().mul(Infinity)).backward();
      act(scaler, optimizer, [...model.parameters()]);
      scaler.step(optimizer);
      scaler.update();
      assert.deepEqual(ownedValues(model.weight), before);
      assert.equal(optimizer.stepsTaken, 1);
      assert.equal(scaler.getScale(), 32768);
    });
  }

  it("refuses a second step before its update, and one with gradients that are scaled still", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    const model = new Linear(device, 2, 2);
    fullyShard(model, { mesh: group });
    initializeParameters(model, 0);
    const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
    using scaler = new GradScaler(device);
    const run = (): void => {
      optimizer.zeroGrad();
      scaler.scale(model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum()).backward();
    };
    run();
    clipGradNorm([model.weight], 1, { scaler });
    const before = ownedValues(model.weight);
    assert.throws(() => scaler.step(optimizer), /Cannot step: the gradient of 'bias' is scaled, and others/);
    assert.deepEqual(ownedValues(model.weight), before);
    scaler.update();
    run();
    scaler.step(optimizer);
    run();
    assert.throws(() => scaler.step(optimizer), /Cannot step: the optimizer has stepped since the last update\(\)/);
  });

  it("goes on from its state, and refuses calls and settings that make no sense", async () => {
    const { device } = await openRank();
    const before = device.allocator.stats.inUse;
    {
      using scaler = new GradScaler(device);
      assert.deepEqual(scaler.state(), {
        ...{ scale: 65536, growthTracker: 0, growthFactor: 2, backoffFactor: 0.5, growthInterval: 2000 },
      });
      const model = new Linear(device, 2, 2);
      for (const parameter of model.parameters()) parameter.materialize();
      const optimizer = new SGD(model.parameters(), { learningRate: 0 });
      assert.throws(() => scaler.update(), /no gradients were unscaled since; call step\(optimizer\) first/);
      {
        using _frame = scope();
        scaler.scale(model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum()).backward();
      }
      assert.equal(model.bias?.grad?.toArray()[0], 65536);
      scaler.unscale(optimizer);
      assert.equal(model.bias?.grad?.toArray()[0], 1);
      assert.throws(
        () => clipGradNorm(model.parameters(), 1, { scaler }),
        /Cannot unscale the gradient of .*: it was since/,
      );
      assert.throws(
        () => clipGradNorm(model.parameters(), 1, { scaler, errorIfNonfinite: true }),
        /scaler and errorIfNonfinite exclude each other/,
      );
      scaler.step(optimizer);
      scaler.update();
      assert.equal(scaler.state().growthTracker, 1);
      using other = new GradScaler(device, { initScale: 8, growthInterval: 5 });
      other.restore({ ...scaler.state(), scale: 1024 });
      assert.deepEqual(other.state(), { ...scaler.state(), scale: 1024 });
      const wrong = [{ initScale: 0 }, { initScale: Infinity }, { growthFactor: 1 }, { backoffFactor: 1 }, {
        growthInterval: 0.5,
      }];
      for (const options of wrong) assert.throws(() => new GradScaler(device, options), /Cannot scale losses by/);
      optimizer.zeroGrad();
      optimizer.dispose();
      for (const parameter of model.parameters()) parameter.dispose();
    }
    assert.equal(device.allocator.stats.inUse, before);
  });
});
