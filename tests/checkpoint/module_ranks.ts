/** The ranks' code of `module_test.ts`: modules of one's own, which are no models of a family. @module */
import { AdamW, fullyShard, replicate, type Tensor } from "../../mod.ts";
import {
  asyncSave,
  CheckpointStager,
  getModelStateDict,
  loadCheckpoint,
  loadHfWeights,
  loadModule,
  saveCheckpoint,
  saveHfDirectory,
  saveModule,
} from "../../doors/checkpoint.ts";
import { BufferTensor, initializeParameters, Linear, Module, Parameter } from "../../doors/nn.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Of odd sizes, with a tied weight, a frozen one, a scalar and buffers. */
export class Own extends Module<[x: Tensor], Tensor> {
  readonly inLayer: Linear;
  readonly layers: readonly Linear[];
  readonly head: { readonly weight: Parameter };
  readonly scale: Parameter;
  readonly runningMean: BufferTensor;
  readonly mask: BufferTensor;

  constructor(device: Tensor["device"]) {
    super();
    this.inLayer = new Linear(device, 5, 13);
    this.layers = [new Linear(device, 13, 13), new Linear(device, 13, 5, { bias: false })];
    this.head = { weight: this.inLayer.weight };
    this.scale = new Parameter(device, [], { init: { kind: "constant", value: 3 } });
    this.runningMean = new BufferTensor(device, [3], { value: 0.25 });
    this.mask = new BufferTensor(device, [2], { value: 7, persistent: false });
    const [first] = this.layers;
    if (first !== undefined) first.weight.requiresGrad = false;
  }

  override forward(x: Tensor): Tensor {
    return this.layers.reduce((value, layer) => layer.call(value), this.inLayer.call(x)).mul(this.scale);
  }
}

/** The layout of a module over the ranks. */
export type Cut = "plain" | "sharded" | "in units" | "replicated";

function cut({ device, group }: WorldRank, how: Cut): Own {
  const model = new Own(device);
  if (how === "in units") { for (const layer of model.layers) fullyShard(layer, { mesh: group }); }
  if (how === "sharded" || how === "in units") fullyShard(model, { mesh: group });
  if (how === "replicated") replicate(model, { mesh: group });
  return model;
}

/** The module that is saved, and the call that saves it. */
export interface Saving {
  readonly cut: Cut;
  readonly directory: string;
  readonly by: "module" | "directory" | "checkpoint" | "async";
}

/** Saves a module drawn from seed 5. */
export async function save(rank: WorldRank, { cut: how, directory, by }: Saving): Promise<string> {
  const { group, device } = rank;
  const model = cut(rank, how);
  initializeParameters(model, 5);
  if (by === "module") await saveModule(model, directory, group, { config: { inputs: 5 } });
  else if (by === "directory") await saveHfDirectory(model, directory, group);
  else {
    const optimizer = new AdamW([...model.parameters()].filter(({ requiresGrad }) => requiresGrad));
    const what = { directory, step: 1, model, optimizer, group, state: {} };
    if (by === "checkpoint") await saveCheckpoint(what);
    else {
      using stager = new CheckpointStager(device);
      await asyncSave({ ...what, stager });
    }
  }
  return "";
}

/** Values by name. */
export type Values = Readonly<Record<string, readonly number[]>>;

function valuesOf(model: Own): Values {
  return Object.fromEntries(
    [...model.namedParameters(), ...model.namedBuffers()].map((
      [name, part],
    ) => [name, Array.from(part.toArray(), Number)]),
  );
}

/** Loads what was saved into a module of other values, or of none; gives what this rank holds, whole where it is plain. */
export async function load(
  rank: WorldRank,
  { cut: how, directory, by, isFresh }: Saving & { readonly isFresh: boolean },
): Promise<{ readonly loaded: Values; readonly expected: Values }> {
  const { group, device } = rank;
  const model = cut(rank, how);
  if (!isFresh) initializeParameters(model, 6);
  if (by === "directory") await loadHfWeights(model, directory, group);
  else if (by === "module") await loadModule(model, directory, group);
  else if (by === "async") await loadModule(model, `${directory}/checkpoint-1`, group);
  else {
    const optimizer = new AdamW([...model.parameters()].filter(({ requiresGrad }) => requiresGrad));
    const loaded = await loadCheckpoint({ directory, model, optimizer, group });
    if (loaded === undefined || loaded.changes.length > 0) throw new Error(`loaded ${JSON.stringify(loaded)}`);
  }
  const whole = new Own(device);
  initializeParameters(whole, 5);
  // Saved and read again by one rank, so that values are compared and not this test's own gather.
  const again = `${directory}-again-${how}-${group.size}-${isFresh}`;
  await saveModule(model, again, group);
  const read = new Own(device);
  initializeParameters(read, 8);
  await loadModule(read, again);
  return { loaded: valuesOf(read), expected: valuesOf(whole) };
}

/** A module whose parameters cannot be named. */
class Hidden extends Module<[], undefined> {
  readonly map: Map<string, Linear>;
  constructor(device: Tensor["device"]) {
    super();
    this.map = new Map([["a", new Linear(device, 2, 2)]]);
  }
  override forward(): undefined {
    return undefined;
  }
}

class Twice extends Module<[], undefined> {
  readonly innerLayer: Linear;
  readonly inner_layer: Linear;
  constructor(device: Tensor["device"]) {
    super();
    this.innerLayer = new Linear(device, 2, 2);
    this.inner_layer = new Linear(device, 2, 2);
  }
  override forward(): undefined {
    return undefined;
  }
}

class Empty extends Module<[], undefined> {
  override forward(): undefined {
    return undefined;
  }
}

/** `Name: message` of what a call throws, or its promise rejects with; empty if neither. */
async function refusalOf(call: () => Promise<unknown>): Promise<string> {
  try {
    await call();
    return "";
  } catch (error) {
    return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  }
}

/** The errors of refused saves, by the way of saving. */
export async function refuse(rank: WorldRank, directory: string): Promise<Readonly<Record<string, readonly string[]>>> {
  const { device, group } = rank;
  const said: Record<string, readonly string[]> = {};
  const tryAll = async (name: string, model: Module): Promise<void> => {
    using stager = new CheckpointStager(device);
    const what = { directory, step: 1, model, group, state: {} };
    said[name] = [
      await refusalOf(() => saveModule(model, directory, group)),
      await refusalOf(() => saveHfDirectory(model, directory, group)),
      await refusalOf(() => saveCheckpoint(what)),
      await refusalOf(async () => void await asyncSave({ ...what, stager })),
    ];
  };
  await tryAll("hidden", new Hidden(device));
  const twice = new Twice(device);
  await tryAll("twice", twice);
  await tryAll("empty", new Empty());
  await tryAll("no values", new Own(device));
  const model = cut(rank, "sharded");
  initializeParameters(model, 1);
  said["alone"] = [await refusalOf(() => saveModule(model, directory))];
  const handle = fullyShard(cut(rank, "plain"), { mesh: group });
  said["handle"] = [await refusalOf(() => Reflect.apply(saveModule, undefined, [handle, directory, group]))];
  const wrong = { group };
  said["no group"] = [
    await refusalOf(() => Reflect.apply(saveModule, undefined, [model, directory, wrong])),
    await refusalOf(() => Reflect.apply(loadModule, undefined, [model, directory, wrong])),
    await refusalOf(() => Reflect.apply(saveHfDirectory, undefined, [model, directory, wrong])),
    await refusalOf(() => Reflect.apply(loadHfWeights, undefined, [model, directory, wrong])),
  ];
  const states = { group: rank.size };
  said["a number"] = [
    await refusalOf(async () => void Reflect.apply(getModelStateDict, undefined, [model, states])),
    await refusalOf(async () =>
      void await Reflect.apply(saveCheckpoint, undefined, [{ directory, step: 1, model, ...states }])
    ),
  ];
  said["missing"] = [await refusalOf(() => loadModule(model, directory, group))];
  return said;
}

rankFunctions(import.meta.url, { save, load, refuse });
