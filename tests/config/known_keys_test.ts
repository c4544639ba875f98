/** Options in PyTorch's spelling, or mistyped: each is refused with the key that was meant, and none is overlooked. @module */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import * as train from "../../mod.ts";
import {
  asyncSave,
  getModelStateDict,
  getOptimizerStateDict,
  loadCheckpoint,
  loadHfWeights,
  loadModule,
  saveCheckpoint,
  saveHfDirectory,
  saveModule,
  setModelStateDict,
} from "../../doors/checkpoint.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { loadTokenizer } from "../../doors/data.ts";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError } from "../../doors/errors.ts";
import {
  arange,
  Dropout,
  Embedding,
  initializeParameters,
  LayerNorm,
  Linear,
  Parameter,
  RMSNorm,
} from "../../doors/nn.ts";

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
const LLAMA = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4 };
const model = await train.openModel({ device, group }, { model_type: "llama", ...LLAMA });
await model.load();
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
  ["Bias", "bias", (key) => Reflect.construct(Linear, [device, 2, 2, { [key]: false }])],
  ["padding_idx", "paddingIdx", (key) => Reflect.construct(Embedding, [device, 2, 2, { [key]: 0 }])],
  ["zero_centered", "zeroCentered", (key) => Reflect.construct(RMSNorm, [device, 2, 1e-6, { [key]: true }])],
  ["epss", "eps", (key) => Reflect.construct(LayerNorm, [device, 2, { [key]: 1 }])],
  ["requires_grad", "requiresGrad", (key) => Reflect.construct(Parameter, [device, [2], { [key]: false }])],
  ["Every", "every", (key) => give(train.applyActivationCheckpointing, layer(), { [key]: 2 })],
  ["fsdp_plan", "fsdpPlan", (key) => give(train.shardModel, layer(), { mesh: group, [key]: "none" })],
  ["lora_alpha", "loraAlpha", (key) => give(train.addLora, model, { [key]: 16 })],
  ["attention_mask", "attentionMask", (key) => {
    const inputIds = train.tensor(device, [1, 2], { shape: [1, 2], dtype: train.int32 });
    return Reflect.apply(model.call, model, [{ inputIds, [key]: inputIds }]);
  }],
  ["full_state_dict", "fullStateDict", (key) => give(getModelStateDict, layer(), { [key]: true })],
  ["cpu_offload", "cpuOffload", (key) => give(setModelStateDict, layer(), new Map(), { [key]: true })],
  ["ignore_frozen_params", "ignoreFrozenParams", (key) => {
    const net = layer();
    return give(getOptimizerStateDict, net, new AdamW(net.parameters()), { [key]: true });
  }],
  ["recurse_", "recurse", (key) => {
    const handle = train.fullyShard(layer(), { mesh: group });
    try {
      return Reflect.apply(handle.setRequiresGradientSync, handle, [false, { [key]: false }]);
    } finally {
      handle.dispose();
    }
  }],
  ["async_op", "asyncOp", (key) => {
    const handle = train.fullyShard(layer(), { mesh: group });
    try {
      return Reflect.apply(handle.unshard, handle, [{ [key]: true }]);
    } finally {
      handle.dispose();
    }
  }],
];

/** Calls that give promises; none of them gets as far as a file. */
const LATER: readonly (readonly [key: string, meant: string, (key: string) => unknown])[] = [
  ["cpu_math", "cpuMath", (key) => give(train.launch, { [key]: "wasm" })],
  ["memory_bytes", "memoryBytes", (key) => give(openDevice, "cpu", { [key]: 2 ** 26 })],
  ["world_size", "worldSize", (key) => give(openProcessGroup, { device, [key]: 2 })],
  ["eos_token", "eosToken", (key) => give(loadTokenizer, "examples/data", { [key]: "." })],
  ["Seed", "seed", (key) => give(train.openModel, { device, group }, { model_type: "llama", ...LLAMA }, { [key]: 3 })],
  ["sequence_length", "sequenceLength", (key) => {
    return give(train.textData, { group }, model, "README.md", { batch: 1, [key]: 8 });
  }],
  [
    "broadcast_from_rank0",
    "broadcastFromRank0",
    (key) => give(loadHfWeights, layer(), "none", undefined, { [key]: true }),
  ],
  [
    "broadcast_from_rank0",
    "broadcastFromRank0",
    (key) => give(loadModule, layer(), "none", undefined, { [key]: true }),
  ],
  [
    "max_shard_bytes",
    "maxShardBytes",
    (key) => give(saveHfDirectory, layer(), "/dev/null/no", undefined, { [key]: 1 }),
  ],
  ["Dtype", "dtype", (key) => give(saveModule, layer(), "/dev/null/no", undefined, { [key]: train.bfloat16 })],
  ["keep_last", "keepLast", (key) => {
    return give(saveCheckpoint, { directory: "/dev/null/no", step: 1, model: layer(), group, state: {}, [key]: 1 });
  }],
  ["keep_last", "keepLast", async (key) => {
    await give(asyncSave, { directory: "/dev/null/no", step: 1, model: layer(), group, state: {}, [key]: 1 });
  }],
  ["Strict", "strict", (key) => give(loadCheckpoint, { directory: "none", model: layer(), group, [key]: false })],
];

function check(error: unknown, key: string, meant: string): true {
  assert.ok(error instanceof ArgumentError, `${key}: ${String(error)}`);
  assert.match(error.message, /^Cannot [\w ']+ with '\w+': expected \w+(, \w+)*\. Did you mean '\w+'\?$/);
  assert.ok(error.message.includes(` with '${key}': `), error.message);
  assert.ok(error.message.endsWith(`. Did you mean '${meant}'?`), error.message);
  return true;
}

test("options of PyTorch's spelling are refused with the one that was meant", async () => {
  using _frame = train.scope();
  for (const [key, meant, run] of CASES) {
    assert.throws(() => run(key), (error) => check(error, key, meant));
  }
  for (const [key, meant, run] of LATER) {
    await assert.rejects(async () => await run(key), (error) => check(error, key, meant));
  }
});

test("a key whose value is undefined is as good as none, and one that is like no other is refused without a guess", () => {
  const parameters = [...layer().parameters()];
  Reflect.construct(AdamW, [parameters, { lr: undefined }]);
  assert.throws(() => Reflect.construct(AdamW, [parameters, { foreach: true }]), {
    name: "ArgumentError",
    message:
      "Cannot optimize with 'foreach': expected parameters, learningRate, schedule, weightDecay, emaDecay, emaStart, betas, eps",
  });
});

test("what is no object of options, and a value in the place of options, is refused", async () => {
  for (const options of [null, 3, "wasm", [1]]) {
    await assert.rejects(async () => await give(openDevice, "cpu", options), { name: "ArgumentError" });
  }
  assert.throws(() => Reflect.construct(Dropout, [0.5, { inplace: true }]), { name: "ArgumentError" });
  assert.throws(() => Reflect.construct(RMSNorm, [device, 2, { eps: 1e-6 }]), { name: "ArgumentError" });
  assert.throws(() => Reflect.construct(LayerNorm, [device, 2, { eps: NaN }]), { name: "ArgumentError" });
});
