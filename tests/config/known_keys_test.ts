/** Options in PyTorch's spelling, or mistyped: each is refused with the key that was meant, and none is overlooked. @module */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import * as train from "../../mod.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError } from "../../doors/errors.ts";
import { arange, initializeParameters, Linear } from "../../doors/nn.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 26 });
after(() => device.dispose());
const group = await openProcessGroup({ device });

function layer(): Linear {
  const made = new Linear(device, 4, 4);
  initializeParameters(made, 0);
  return made;
}

/** Gives options whose types nobody has checked. */
function give(run: (...given: readonly never[]) => unknown, ...given: readonly unknown[]): unknown {
  return Reflect.apply(run, undefined, given);
}

const { AdamW, SGD, GradScaler } = train;
const CASES: readonly (readonly [key: string, meant: string, (key: string) => unknown])[] = [
  ["lr", "learningRate", (key) => Reflect.construct(AdamW, [layer().parameters(), { [key]: 1e-4 }])],
  ["weight_decay", "weightDecay", (key) => Reflect.construct(AdamW, [layer().parameters(), { [key]: 0 }])],
  ["lr", "learningRate", (key) => Reflect.construct(AdamW, [[{ parameters: layer().parameters(), [key]: 1 }]])],
  ["beta", "betas", (key) => Reflect.construct(AdamW, [layer().parameters(), { [key]: [0, 0] }])],
  ["lr", "learningRate", (key) => Reflect.construct(SGD, [layer().parameters(), { [key]: 1 }])],
  ["momentun", "momentum", (key) => Reflect.construct(SGD, [layer().parameters(), { [key]: 0.9 }])],
  ["init_scale", "initScale", (key) => Reflect.construct(GradScaler, [device, { [key]: 2 }])],
  ["num_warmup_steps", "warmupSteps", (key) => give(train.cosine, { steps: 9, [key]: 3 })],
  ["minratio", "minRatio", (key) => give(train.linear, { steps: 9, [key]: 0.5 })],
  ["norm_type", "normType", (key) => give(train.clipGradNorm, layer().parameters(), 1, { [key]: 1 })],
  ["norm_type", "normType", (key) => give(train.gradNorm, layer().parameters(), { [key]: 1 })],
  [
    "reshard_after_forward",
    "reshardAfterForward",
    (key) => give(train.fullyShard, layer(), { mesh: group, [key]: true }),
  ],
  ["mp_policy", "precision", (key) => give(train.fullyShard, layer(), { mesh: group, [key]: {} })],
  ["param_dtype", "paramDtype", (key) => {
    return give(train.fullyShard, layer(), { mesh: group, precision: { [key]: train.bfloat16 } });
  }],
  ["bucket_cap_mb", "bucketBytes", (key) => give(train.replicate, layer(), { mesh: group, [key]: 1 })],
  ["pin_memory", "pinMemory", (key) => give(train.cpuOffloadPolicy, { [key]: false })],
  ["Shape", "shape", (key) => give(train.tensor, device, [1, 2], { [key]: [2, 1] })],
  ["stepp", "step", (key) => give(arange, device, 3, { [key]: 2 })],
  ["retain_graph", "retainGraph", (key) => {
    const loss = layer().call(train.tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum();
    return Reflect.apply(loss.backward, loss, [undefined, { [key]: true }]);
  }],
];

test("options of PyTorch's spelling are refused with the one that was meant", () => {
  using _frame = train.scope();
  for (const [key, meant, run] of CASES) {
    assert.throws(() => run(key), (error) => {
      assert.ok(error instanceof ArgumentError, `${key}: ${String(error)}`);
      assert.match(error.message, /^Cannot [\w ']+ with '\w+': expected \w+(, \w+)*\. Did you mean '\w+'\?$/);
      assert.ok(error.message.includes(` with '${key}': `), error.message);
      assert.ok(error.message.endsWith(`. Did you mean '${meant}'?`), error.message);
      return true;
    });
  }
});

test("a key whose value is undefined is as good as none, and one that is like no other is refused without a guess", () => {
  const parameters = [...layer().parameters()];
  Reflect.construct(AdamW, [parameters, { lr: undefined }]);
  assert.throws(() => Reflect.construct(AdamW, [parameters, { foreach: true }]), {
    name: "ArgumentError",
    message: "Cannot optimize with 'foreach': expected parameters, learningRate, schedule, weightDecay, betas, eps",
  });
});
