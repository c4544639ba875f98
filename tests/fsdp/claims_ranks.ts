/** The ranks' code of `claims_test.ts`. @module */
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { cpuOffloadPolicy, describeSharding, fullyShard, scope, type Tensor } from "../../mod.ts";
import {
  type DirectoryTensor,
  modelTensors,
  plainDirectoryTensors,
} from "../../src/checkpoint/state_dict/state_dict.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input } from "./modules.ts";

const WIDTH = 20;

/** Two layers with one weight, and a bias each. */
class TiedPair extends Module<[x: Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;
  readonly hfConfig = {};
  readonly tiedNames: ReadonlyMap<string, string> = new Map();

  constructor(device: WorldRank["device"]) {
    super();
    this.first = new Linear(device, WIDTH, WIDTH);
    this.second = new Linear(device, WIDTH, WIDTH, {}, this.first.weight);
  }

  directoryTensors(): Iterable<DirectoryTensor> {
    return plainDirectoryTensors(this);
  }

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x).tanh());
  }
}

/** The values of a rank after a unit was merged. */
export interface MergeReport {
  readonly units: readonly string[];
  readonly reports: readonly string[];
  /** Tensors of a checkpoint. */
  readonly names: readonly string[];
  /** Of a step, whose gradients and values are those of plain modules or not. */
  readonly calls: readonly string[];
  readonly same: { readonly values: boolean; readonly gradients: boolean };
}

/** The settings of {@link mergeTied}. */
export interface Merge {
  /** True if the model has values from the beginning; else it gets them at the end. */
  readonly early: boolean;
  readonly isOffloaded: boolean;
}

/** Shards the first layer, then both. */
export function mergeTied({ device, group }: WorldRank, { early, isOffloaded }: Merge): MergeReport {
  const [model, plain] = [new TiedPair(device), new TiedPair(device)];
  model.nameTree();
  if (early) initializeParameters(model, 3);
  initializeParameters(plain, 3);
  const reports: string[] = [];
  group.report = (text) => void reports.push(text);
  const options = { mesh: group, ...isOffloaded ? { offloadPolicy: cpuOffloadPolicy() } : {} };
  fullyShard(model.first, options);
  fullyShard(model, options);
  if (!early) initializeParameters(model, 3);
  const calls: string[] = [];
  group.observe(({ kind, unit }) =>
    void (["gather", "all-gather", "reduce-scatter"].includes(kind) && calls.push(`${kind} ${unit}`))
  );
  using _frame = scope();
  for (const one of [model, plain]) one.call(input(device, "x", 2, WIDTH)).sum().backward();
  const others = [...plain.parameters()];
  const near = (a: number = NaN, b: number = NaN): boolean => Math.abs(a - b) <= 1e-6 * Math.max(1, Math.abs(b));
  const isSame = (
    own: (i: number) => ArrayLike<number>,
    whole: (i: number) => ArrayLike<number>,
    equals: (a?: number, b?: number) => boolean,
  ): boolean =>
    [...model.parameters()].every(({ storage }, i) =>
      elementSlices(storage.shard).every(({ offset, length, local }) =>
        Array.from({ length }, (_, k) => equals(own(i)[local + k], whole(i)[offset + k])).every(Boolean)
      )
    );
  const of = <T>(list: readonly T[], i: number): T => {
    const item = list[i];
    if (item === undefined) throw new Error(`no item ${i}`);
    return item;
  };
  const mine = [...model.parameters()];
  const values = isSame((i) => ownedValues(of(mine, i)), (i) => of(others, i).toArray(), Object.is);
  const grads = (list: typeof mine) => (i: number): ArrayLike<number> => of(list, i).grad?.toArray() ?? [];
  const same = { values, gradients: isSame(grads(mine), grads(others), near) };
  const units = describeSharding(model).units.map(({ name }) => name);
  return { units, reports, names: modelTensors(model).map(({ name }) => name), calls, same };
}

rankFunctions(import.meta.url, { mergeTied });
