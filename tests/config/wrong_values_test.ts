/** Public calls with values of a wrong type, as programs give them whose types nobody checks: each is refused by name. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { loadCheckpoint, saveCheckpoint, saveModule } from "../../doors/checkpoint.ts";
import { deviceMesh, openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError, ConfigError } from "../../doors/errors.ts";
import { initializeParameters, Linear, Module, mseLoss, Parameter, zeros } from "../../doors/nn.ts";
import * as root from "../../mod.ts";

const device = await openDevice("cpu");
const group = await openProcessGroup({ device });
const linear = (): Linear => new Linear(device, 4, 4);
const parameters = (): Iterable<Parameter> => linear().parameters();

class NoForward extends Module {
  readonly weight: Parameter = new Parameter(device, [2]);
  declare forward: () => void;
}

const x = root.tensor(device, [1, 2, 3, 4], { shape: [2, 2] });

/** A function, the arguments that it is given, and the text of its error. */
type Call = readonly [name: string, run: (...args: never[]) => unknown, given: readonly unknown[], expected: RegExp];

const optimizers = [root.AdamW, root.AdamW8bit, root.SGD, root.Lion, root.Muon, root.Adafactor] as const;

const calls: readonly Call[] = [
  [
    "fullyShard without a mesh",
    root.fullyShard,
    [linear(), {}],
    /^Cannot shard over undefined: expected ranks as 'mesh'/,
  ],
  ["fullyShard over an object", root.fullyShard, [linear(), { mesh: {} }], /^Cannot shard over an object: /],
  ["fullyShard of an object", root.fullyShard, [{}, { mesh: group }], /^Cannot shard an object: expected a Module/],
  ["fullyShard of numbers", root.fullyShard, [[1], { mesh: group }], /^Cannot shard 1: expected a Module/],
  ["fullyShard of nothing", root.fullyShard, [undefined, { mesh: group }], /^Cannot shard undefined: /],
  ...[
    ["reshardAfterForward", "yes", /reshardAfterForward "yes": expected true, false or a number of ranks/],
    ["backwardPrefetch", 1, /backwardPrefetch 1: expected true or false/],
    ["offloadPolicy", true, /offloadPolicy true: expected what cpuOffloadPolicy\(\) gives/],
    ["shardPlacement", 0, /shardPlacement 0: expected a function/],
    ["ignoredParameters", 5, /^Cannot ignore parameters of 5: expected a list of parameters/],
    ["ignoredParameters", ["weight"], /^Cannot ignore parameters of "weight": expected parameters/],
  ].map(([option, value, expected]): Call => {
    assert.ok(typeof option === "string" && expected instanceof RegExp);
    return [
      `fullyShard with ${option} ${value}`,
      root.fullyShard,
      [linear(), { mesh: group, [option]: value }],
      expected,
    ];
  }),
  ["replicate without a mesh", root.replicate, [linear(), {}], /^Cannot replicate over undefined: /],
  ["shardModel without a mesh", root.shardModel, [linear(), {}], /^Cannot shard over undefined: /],
  [
    "shardModel without a plan",
    root.shardModel,
    [linear(), { mesh: group }],
    /fsdpPlan: expected a plan whose mode is /,
  ],
  [
    "shardModel by an unknown plan",
    root.shardModel,
    [linear(), { mesh: group, fsdpPlan: "blocks" }],
    /fsdpPlan: expected a plan whose mode is auto, .*, got mode "blocks"/,
  ],
  ["parallelizeModule without a mesh", root.parallelizeModule, [linear()], /^Cannot parallelize over undefined: /],
  ["shardModel of an object", root.shardModel, [{}, { mesh: group }], /^Cannot shard an object: expected a Module/],
  ["addLora to nothing", root.addLora, [], /^Cannot add an adapter to undefined: expected a Module/],
  [
    "applyActivationCheckpointing to an object",
    root.applyActivationCheckpointing,
    [{}],
    /^Cannot checkpoint an object: expected a Module/,
  ],
  ["describeSharding of a group", root.describeSharding, [group], /^Cannot describe an instance of ProcessGroup: /],
  ["initializeParameters of a list", initializeParameters, [[], 0], /^Cannot initialize an array: expected a Module/],
  ["saveModule of parameters", saveModule, [linear().weight, "x"], /^Cannot save an instance of Parameter: /],
  [
    "deviceMesh of a device",
    deviceMesh,
    [device, { shard: 1 }],
    /^Cannot make a mesh of an instance of \w+ and an object: /,
  ],
  ["deviceMesh without axes", deviceMesh, [group], /^Cannot make a mesh of .* and undefined: /],
  ["gradNorm of a module", root.gradNorm, [linear()], /^Cannot take the norm of an instance of Linear: /],
  ["clipGradNorm of a module", root.clipGradNorm, [linear(), 1], /^Cannot clip gradients of an instance of Linear: /],
  [
    "tensor on nothing",
    root.tensor,
    [undefined, [1, 2]],
    /^Cannot make a tensor on undefined: expected a device first/,
  ],
  [
    "tensor of a shape of one number",
    root.tensor,
    [device, [1, 2], { shape: 2 }],
    /the shape 2: expected a list of sizes/,
  ],
  ["zeros without a shape", zeros, [device], /the shape undefined: expected a list of sizes/],
  ["openModel without a run", root.openModel, ["folder"], /^Cannot open a model of "folder": expected a run first/],
  [
    "openModel of nothing",
    root.openModel,
    [{ group, device }],
    /^Cannot open a model of undefined: expected the path /,
  ],
  ["textData without a run", root.textData, [{}], /^Cannot open text of an object: expected a run first/],
  [
    "evaluate without a run",
    root.evaluate,
    [linear()],
    /^Cannot evaluate of an instance of Linear: expected a run first/,
  ],
  ["evaluate of an own module", root.evaluate, [{ group }, linear()], /^Cannot use evaluate with a module of your own/],
  ["openProcessGroup without a device", openProcessGroup, [{}], /^Cannot open a process group on undefined: /],
  [
    "loadCheckpoint of nothing",
    loadCheckpoint,
    [{}],
    /^Cannot load a checkpoint with directory undefined: expected a path/,
  ],
  ["loadCheckpoint without ranks", loadCheckpoint, [{ directory: "x", model: linear() }], /with group undefined: /],
  ["saveCheckpoint without a model", saveCheckpoint, [{ directory: "x", step: 1, group }], /with model undefined: /],
  [
    "group.sum of one number",
    group.sum.bind(group),
    [1, "loss"],
    /^Cannot sum 1 for 'loss': expected a list of numbers/,
  ],
  ["group.sum of text", group.sum.bind(group), [["1"], "loss"], /^Cannot sum an array for 'loss': /],
  [
    "mseLoss with an unknown reduction",
    mseLoss,
    [x, x, "avg"],
    /with reduction "avg": expected one of 'mean', 'sum', 'none'/,
  ],
  [
    "gelu with options",
    x.gelu.bind(x),
    [{ approximate: "tanh" }],
    /with approximate an object: expected one of 'none', 'tanh'/,
  ],
  ["sum with options", x.sum.bind(x), [0, { keepDim: true }], /with keepDims an object: expected true or false/],
  [
    "clipGradNorm with text",
    root.clipGradNorm,
    [parameters(), 1, { errorIfNonfinite: "no" }],
    /errorIfNonfinite "no": /,
  ],
  [
    "cpuOffloadPolicy with text",
    root.cpuOffloadPolicy,
    [{ pinMemory: "no" }],
    /pinMemory "no": expected true or false/,
  ],
  [
    "replicate with text",
    root.replicate,
    [linear(), { mesh: group, bucketBytes: "5" }],
    /bucketBytes "5": expected a positive/,
  ],
  [
    "addLora with a word",
    root.addLora,
    [linear(), { initLoraWeights: "pissa" }],
    /initLoraWeights "pissa": expected true or/,
  ],
  [
    "openDevice with unknown math",
    openDevice,
    ["cpu", { cpuMath: "fast" }],
    /cpuMath "fast": expected one of 'auto', /,
  ],
  [
    "applyActivationCheckpointing of an unknown op",
    root.applyActivationCheckpointing,
    [linear(), { saveOps: ["matmull"] }],
    /saveOps "matmull": expected one of .* Did you mean 'matmul'\?/,
  ],
  [
    "fullyShard with text for a switch",
    root.fullyShard,
    [linear(), { mesh: group, precision: { castForwardInputs: "no" } }],
    /castForwardInputs "no": expected true or false/,
  ],
];

describe("wrong values", () => {
  for (const [name, run, given, expected] of calls) {
    it(name, async () => {
      await assert.rejects(async () => await Reflect.apply(run, undefined, given), (error) => {
        assert.ok(error instanceof ArgumentError || error instanceof ConfigError, String(error));
        assert.match(error.message, expected);
        return true;
      });
    });
  }

  for (const optimizer of optimizers) {
    const { name } = optimizer;
    const refuses = (given: readonly unknown[], expected: RegExp): void =>
      assert.throws(() => Reflect.construct(optimizer, given), expected);

    it(`${name} takes no rate as its second argument, and no default in its place`, () => {
      refuses(
        [parameters(), 1e-3],
        /^ArgumentError: Cannot optimize with 0.001: expected an object of options, of learningRate/,
      );
    });

    it(`${name} takes lists of parameters, or groups with 'parameters'`, () => {
      refuses([linear()], /Cannot optimize parameters of an instance of Linear: expected a list of parameters/);
      refuses([[{ params: [...parameters()] }]], /Cannot optimize an object: .* Did you mean 'parameters'\?/);
      refuses([linear().namedParameters()], /Cannot optimize an array: expected parameters/);
      refuses([["weight"]], /Cannot optimize "weight": expected parameters/);
      refuses([[{ parameters: ["weight"] }]], /Cannot optimize a group of "weight": expected parameters/);
    });
  }

  it("a Parameter takes a device, a shape and an initialization with its numbers", () => {
    const refuses = (given: readonly unknown[], expected: RegExp): void =>
      assert.throws(() => Reflect.construct(Parameter, given), expected);
    refuses([root.tensor(device, [1])], /Cannot make a Parameter on an instance of Tensor: expected a device first/);
    refuses([device], /the shape undefined: expected a list of sizes/);
    refuses([device, 4], /the shape 4: expected a list of sizes/);
    refuses([device, ["4"]], /sizes must be integers/);
    refuses([device, [4], { init: "zeros" }], /by "zeros": expected \{ kind: "normal", mean, std \} or /);
    refuses([device, [4], { init: { kind: "ones" } }], /expected \{ kind: "normal"/);
    refuses([device, [4], { init: { kind: "normal", mean: 0 } }], /by 'normal': expected .* with numbers/);
    assert.throws(() => Reflect.construct(Linear, [4, 4]), /Cannot make a Parameter on 4: expected a device first/);
  });

  it("requiresGrad takes no text, which would count as true", () => {
    const { weight } = linear();
    assert.throws(() => Reflect.set(weight, "requiresGrad", "no"), /to "no": expected true or false/);
    assert.equal(weight.requiresGrad, true);
  });

  it("a module without a forward is named", () => {
    const module = new NoForward();
    initializeParameters(module, 0);
    assert.throws(() => module.call(), /^ArgumentError: Cannot call NoForward: it has no method forward$/);
  });

  it("a Linear takes words and switches that there are, and a tied weight of its shape", () => {
    const refuses = (options: Readonly<Record<string, unknown>>, expected: RegExp, tied?: unknown): void =>
      assert.throws(() => Reflect.construct(Linear, [device, 4, 4, options, tied]), expected);
    refuses({ layout: "out" }, /layout "out": expected one of 'outIn', 'inOut'/);
    refuses({ bias: "no" }, /bias "no": expected true or false/);
    refuses({ packs: -1 }, /packs -1: expected a positive integer or 'unequal'/);
    refuses({}, /to an instance of Tensor: expected a Parameter \[4, 4\]/, x);
    refuses({}, /to a Parameter \[3, 4\]: expected a Parameter \[4, 4\]/, new Parameter(device, [3, 4]));
  });

  it("switches of a sharded module and of a backward take no text", () => {
    const layer = linear();
    const handle = root.fullyShard(layer, { mesh: group });
    const { setRequiresGradientSync } = handle;
    assert.throws(() => Reflect.apply(setRequiresGradientSync, handle, ["no"]), /sync "no": expected true or false/);
    initializeParameters(layer, 0);
    const loss = layer.call(zeros(device, [1, 4])).sum();
    assert.throws(
      () => Reflect.apply(loss.backward, loss, [undefined, { retainGraph: "no" }]),
      /retainGraph "no": expected true or false/,
    );
  });

  it("a GradScaler takes a device, and steps with an optimizer", () => {
    assert.throws(() => Reflect.construct(root.GradScaler, [65536]), /Cannot make a GradScaler on 65536: /);
    using scaler = new root.GradScaler(device);
    assert.throws(() => Reflect.apply(scaler.step, scaler, []), /Cannot step with undefined: expected an optimizer/);
  });
});
