/**
 * Ranks that save and load, for the tests of checkpoints: a list of tasks, each run by the first `world` ranks of a
 * loopback world, with a small model whose every value follows from a seed.
 *
 * @module
 */
import { loadHfWeights } from "../../src/checkpoint/hugging_face/load.ts";
import { saveHfDirectory } from "../../src/checkpoint/hugging_face/save.ts";
import { asyncSave, type AsyncSaveOptions } from "../../src/checkpoint/sharded/async_save.ts";
import { loadCheckpoint } from "../../src/checkpoint/sharded/load.ts";
import { saveCheckpoint } from "../../src/checkpoint/sharded/save.ts";
import { CheckpointStager } from "../../src/checkpoint/sharded/stager.ts";
import {
  type CheckpointModel,
  type DirectoryTensor,
  modelTensors,
  optimizerTensors,
  plainDirectoryTensors,
} from "../../src/checkpoint/state_dict/state_dict.ts";
import type { LoopbackWorld } from "../../src/comm/control/workers.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import type { Device } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Module } from "../../src/nn/module.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { BufferTensor } from "../../src/tensor/buffer_tensor.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";

/** The action that the ranks do together. */
export interface Task {
  readonly do: "save" | "async-save" | "load" | "save-hf" | "load-hf";
  /** Number of ranks that take part. */
  readonly world: number;
  readonly directory: string;
  /** The model's contents: when saving, all of it; when loading, the contents that are expected afterwards. */
  readonly seed: number;
  /** Whole on every rank, or sharded. @default sharded */
  readonly whole?: boolean;
  /** Config of a Llama; the small model of this file if left out. */
  readonly llama?: Readonly<Record<string, unknown>>;
  readonly step?: number;
  readonly keepLast?: number;
  readonly from?: string;
  /** The end of an asynchronous save: it is awaited (default), left alone while ranks make other calls, or given up. */
  readonly then?: "await" | "call on" | "give up";
  /** True if rank 0 alone reads, and sends the others their elements. */
  readonly broadcastFromRank0?: boolean;
  /** True if all tensors must be in the files. */
  readonly strict?: boolean;
  /** True if the small model is one unit; else each block is a unit. */
  readonly oneUnit?: boolean;
  /** This rank cannot reach its memory: it fails while it saves or loads. */
  readonly broken?: number;
  /** True if weights are written rounded, or expected to be rounded. */
  readonly bfloat16?: boolean;
  readonly maxShardBytes?: number;
  readonly tokenizerFiles?: readonly string[];
  /** A Hugging Face directory that what was loaded is written into. */
  readonly saveTo?: string;
  /** A directory of checkpoints that what was loaded is saved into. */
  readonly checkpointTo?: string;
  readonly environment?: Readonly<Record<string, string>>;
}

/** The outcome of a task on one rank. */
export interface Outcome {
  /** `Name: message`, or empty. */
  readonly error: string;
  /** Elements of parameters and states that are not as expected. */
  readonly wrong: number;
  /** Elements compared. */
  readonly compared: number;
  /** The returned value. */
  readonly value: Readonly<Record<string, unknown>>;
}

/** Tasks with their worlds, as ranks in Workers are given them. */
export interface Tasks {
  readonly tasks: readonly Task[];
  readonly worlds: readonly LoopbackWorld[];
  /** One world of all ranks, in which they wait for each other between tasks. */
  readonly common: LoopbackWorld;
}

/** Makes the worlds. */
export function prepare(tasks: readonly Task[], size: number): Tasks {
  const options = { stagingBytes: 2 ** 18 };
  return {
    tasks,
    worlds: tasks.map(({ world }) => createLoopbackWorld(world, options)),
    common: createLoopbackWorld(size, options),
  };
}

/** Config of a Llama with tied embeddings. */
export const TINY_LLAMA: Readonly<Record<string, unknown>> = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  vocab_size: 32,
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 16,
  rms_norm_eps: 1e-6,
  tie_word_embeddings: true,
};

/** One block of the small model. */
class Block extends Module<[], undefined> {
  readonly weight: Parameter;
  /** Three dims, of a size that two or more ranks cut inside a row of dim 0. */
  readonly kernel: Parameter;
  readonly bias: Parameter;

  constructor(device: Device) {
    super();
    const init = { kind: "normal", mean: 0, std: 1 } as const;
    this.weight = new Parameter(device, [40, 12], { init });
    this.kernel = new Parameter(device, [3, 50, 8], { init });
    this.bias = new Parameter(device, [100], { init });
  }

  override forward(): undefined {
    return undefined;
  }
}

/** A model without a forward: parameters, a buffer, and a directory in which one parameter lies as two tensors. */
export class SmallModel extends Module<[], undefined> implements CheckpointModel {
  readonly embed: Parameter;
  readonly blocks: readonly Block[];
  readonly scale: Parameter;
  readonly offsets: BufferTensor;
  readonly hfConfig = { model_type: "small" };
  readonly tiedNames: ReadonlyMap<string, string> = new Map();

  constructor(device: Device) {
    super();
    const init = { kind: "normal", mean: 0, std: 1 } as const;
    this.embed = new Parameter(device, [37, 24], { init });
    this.blocks = [new Block(device), new Block(device)];
    this.scale = new Parameter(device, [], { init });
    this.offsets = new BufferTensor(device, [3], { value: 0.5 });
    this.nameTree();
  }

  override forward(): undefined {
    return undefined;
  }

  *directoryTensors(): Generator<DirectoryTensor> {
    for (const tensor of plainDirectoryTensors(this)) if (tensor.part !== this.embed) yield tensor;
    for (const [name, column, columns] of [["left", 0, 10], ["right", 10, 14]] as const) {
      const shape = [37, columns];
      yield { name: `embed.${name}`, part: this.embed, shape, box: { offsets: [0, column], sizes: shape } };
    }
  }
}

/** A value of an optimizer state: any number that differs by name, place and seed. */
function stateValue(name: string, element: number, seed: number): number {
  let hash = seed * 31 + element * 7;
  for (let i = 0; i < name.length; i++) hash = (hash * 33 + name.charCodeAt(i)) % 8191;
  return Math.fround(hash / 8191 + element);
}

/** A whole model with a seed's values, by name. */
function valuesOf(device: Device, task: Task): ReadonlyMap<string, Float32Array> {
  const model = build(device, task);
  initializeParameters(model, task.seed);
  return new Map(
    [...model.namedParameters(), ...model.namedBuffers()].map(([name, part]) => [name, part.toArray()] as const).map((
      [name, values],
    ) => {
      if (!(values instanceof Float32Array)) throw new Error("not float32");
      return [name, values];
    }),
  );
}

function build(device: Device, { llama }: Task): CheckpointModel & Module {
  return llama === undefined ? new SmallModel(device) : buildModel(device, llama);
}

/** Runs tasks as one rank. */
export async function runTasks({ tasks, worlds, common }: Tasks, rank: number): Promise<readonly Outcome[]> {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 27 });
  using all = openLoopback(common, rank, device, { timeoutSeconds: 60 });
  const outcomes: Outcome[] = [];
  for (const [i, task] of tasks.entries()) {
    const world = worlds[i];
    if (world !== undefined && rank < task.world) outcomes.push(await runTask(task, world, rank, device));
    all.barrier(`task ${i}`);
  }
  return outcomes;
}

async function runTask(task: Task, world: LoopbackWorld, rank: number, plain: Device): Promise<Outcome> {
  const device = rank === task.broken ? brokenDevice(plain, task.do.startsWith("load") ? "copyIn" : "copyOut") : plain;
  using group = openLoopback(world, rank, plain, { timeoutSeconds: 20 });
  const model = build(device, task);
  if (task.whole !== true) {
    const units = model instanceof SmallModel && task.oneUnit !== true ? model.blocks : [];
    for (const unit of units) fullyShard(unit, { mesh: group });
    fullyShard(model, { mesh: group });
  }
  const loads = task.do === "load" || task.do === "load-hf";
  initializeParameters(model, loads ? task.seed + 1 : task.seed);
  for (const [, buffer] of loads ? model.namedBuffers() : []) buffer.copyFromHost(new Float32Array(buffer.numel));
  const optimizer = new AdamW(model.parameters());
  try {
    const value = await act(task, model, optimizer, group);
    if (!loads) return { error: "", wrong: 0, compared: 0, value };
    return { error: "", ...compare(task, model, optimizer, valuesOf(plain, task)), value };
  } catch (error) {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    return { error: text, wrong: 0, compared: 0, value: {} };
  } finally {
    optimizer.dispose();
  }
}

async function act(
  task: Task,
  model: CheckpointModel & Module,
  optimizer: AdamW,
  group: ProcessGroup,
): Promise<Readonly<Record<string, unknown>>> {
  const { directory, seed, step = 1, keepLast, from, maxShardBytes, tokenizerFiles } = task;
  const common = { directory, model, optimizer, group, environment: task.environment ?? {} };
  switch (task.do) {
    case "save":
    case "async-save": {
      for (const tensor of optimizerTensors(model, optimizer)) {
        const values = Float32Array.from(
          elementSlices(tensor.shard).flatMap(({ offset, length }) =>
            Array.from({ length }, (_, j) => stateValue(tensor.name, offset + j, seed))
          ),
        );
        if (values.length > 0) tensor.device.copyIn(tensor.ptr(), new Uint8Array(values.buffer));
      }
      let n = 0;
      for (const parameter of model.parameters()) optimizer.setSteps(parameter, step + n++);
      const state = { seed, cursor: 2 ** 40 + 1, rate: 0.1 + 0.2 };
      const options = { ...common, step, state, ...keepLast === undefined ? {} : { keepLast } };
      return task.do === "save" ? { ...await saveCheckpoint(options) } : await saveAside(options, task);
    }
    case "load": {
      const { broadcastFromRank0 = false, strict = true } = task;
      const loaded = await loadCheckpoint({
        ...common,
        strict,
        broadcastFromRank0,
        ...from === undefined ? {} : { from },
      });
      const steps = [...model.parameters()].map((parameter) => optimizer.stepsOf(parameter));
      return { found: loaded !== undefined, ...loaded, steps };
    }
    case "save-hf":
      await saveHfDirectory(model, directory, group, {
        dtype: task.bfloat16 === true ? bfloat16 : float32,
        ...maxShardBytes === undefined ? {} : { maxShardBytes },
        ...tokenizerFiles === undefined ? {} : { tokenizerFiles },
      });
      return {};
    case "load-hf": {
      const { broadcastFromRank0 = false } = task;
      const report = await loadHfWeights(model, directory, group, { broadcastFromRank0 });
      if (task.saveTo !== undefined) {
        await saveHfDirectory(model, task.saveTo, group, maxShardBytes === undefined ? {} : { maxShardBytes });
      }
      if (task.checkpointTo !== undefined) {
        await saveCheckpoint({ ...common, directory: task.checkpointTo, step, state: {} });
      }
      return { ...report };
    }
  }
}

/** Saves while the model and the states of its optimizer become others. */
async function saveAside(
  options: Omit<AsyncSaveOptions, "stager"> & { readonly model: CheckpointModel & Module },
  { seed, then: what = "await" }: Task,
): Promise<Readonly<Record<string, unknown>>> {
  const { model, optimizer, group } = options;
  const [device] = modelTensors(model).map(({ computeDevice }) => computeDevice);
  if (device === undefined) throw new Error("a model of nothing");
  using stager = new CheckpointStager(device);
  using saving = asyncSave({ ...options, stager });
  const counted = device.allocator.stats.peakTerms.snapshot;
  if (what === "give up") return { counted };
  initializeParameters(model, seed + 7);
  for (const { shard, device, ptr } of optimizer === undefined ? [] : optimizerTensors(model, optimizer)) {
    if (shard.numel > 0) device.copyIn(ptr(), new Uint8Array(shard.numel * 4).fill(9));
  }
  const next = { ...options, step: options.step + 1 };
  const again = message(() => asyncSave({ ...next, stager }));
  using other = new CheckpointStager(device);
  const beside = message(() => asyncSave({ ...next, stager: other }));
  const blocking = await saveCheckpoint(next).catch(String);
  while (what === "call on" && group.sum([saving.done ? 1 : 0], "saves that are done")[0] !== group.size) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  return { ...await saving, done: saving.done, counted, again, beside, blocking };
}

function message(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    return String(error);
  }
  return "";
}

function compare(
  task: Task,
  model: CheckpointModel,
  optimizer: AdamW,
  expected: ReadonlyMap<string, Float32Array>,
): { wrong: number; compared: number } {
  let wrong = 0;
  let compared = 0;
  const states = task.do === "load" ? optimizerTensors(model, optimizer) : [];
  for (const { name, shard, device, ptr } of [...modelTensors(model), ...states]) {
    const [run] = elementSlices(shard);
    if (run === undefined) continue;
    const { offset, length } = run;
    const values = new Float32Array(length);
    device.copyOut(new Uint8Array(values.buffer), ptr());
    const whole = expected.get(name);
    for (const [i, value] of values.entries()) {
      compared++;
      let target = whole === undefined ? stateValue(name, offset + i, task.seed) : whole[offset + i] ?? NaN;
      if (task.bfloat16 === true) target = roundToBfloat16(target);
      if (!Object.is(value, target)) wrong++;
    }
  }
  return { wrong, compared };
}

/** To nearest, ties to even; by arithmetic, for finite values. */
function roundToBfloat16(value: number): number {
  if (value === 0) return value;
  const unit = 2 ** (Math.floor(Math.log2(Math.abs(value))) - 7);
  const down = Math.floor(value / unit);
  const rest = value / unit - down;
  return (rest > 0.5 || (rest === 0.5 && down % 2 !== 0) ? down + 1 : down) * unit;
}

function brokenDevice(device: Device, broken: "copyIn" | "copyOut"): Device {
  return new Proxy(device, {
    get(target, key): unknown {
      if (key === broken) {
        return () => {
          throw new Error("this memory cannot be reached");
        };
      }
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
