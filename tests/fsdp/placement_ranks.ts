/** The ranks' code of `placement_test.ts`. @module */
import {
  bfloat16,
  fullyShard,
  type FullyShardedModule,
  type FullyShardOptions,
  type GatherExtension,
  gradNorm,
  scope,
  SGD,
  tensor,
} from "../../mod.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { uint8 } from "../../doors/device.ts";
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input } from "./modules.ts";

/** Two layers of uneven sizes. */
export class Uneven extends Module<[x: Tensor], Tensor> {
  readonly up: Linear;
  readonly down: Linear;

  constructor(device: WorldRank["device"]) {
    super();
    this.up = new Linear(device, 12, 5);
    this.down = new Linear(device, 5, 2, { bias: false });
  }

  forward(x: Tensor): Tensor {
    return this.down.call(this.up.call(x).tanh());
  }
}

/** The placement of parameters: the dim of `up.weight`, and of all others. */
export interface PlacementCase {
  readonly up?: number;
  readonly others?: number;
  readonly bfloat16?: boolean;
  readonly reshardAfterForward?: boolean | number;
}

/** The results of a rank. */
export interface PlacementReport {
  /** Boxes that the rank keeps of each parameter. */
  readonly boxes: readonly (readonly (readonly number[])[])[];
  /** Losses of three steps, norms before them, and whole weights after them. */
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  readonly weights: readonly (readonly number[])[];
  readonly padding: readonly number[];
}

function options(model: Uneven, group: WorldRank["group"], data: PlacementCase): FullyShardOptions {
  return {
    mesh: group,
    shardPlacement: (parameter) => parameter === model.up.weight ? data.up : data.others,
    ...data.reshardAfterForward === undefined ? {} : { reshardAfterForward: data.reshardAfterForward },
    ...data.bfloat16 === true ? { precision: { paramDtype: bfloat16 } } : {},
  };
}

/** The whole values of a unit. */
function wholeWeights({ modules, unit }: FullyShardedModule): readonly (readonly number[])[] {
  unit.unshard("manual");
  unit.waitForGather();
  const values = modules.flatMap((module) => [...module.parameters()].map((whole) => [...whole.toArray()]));
  unit.reshard();
  return values;
}

/** Three steps. */
export function train({ device, group, rank }: WorldRank, data: PlacementCase): PlacementReport {
  const model = new Uneven(device);
  initializeParameters(model, 2); // values that it has are cut as well
  const sharded = fullyShard(model, options(model, group, data));
  const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
  const [losses, norms]: [number[], number[]] = [[], []];
  for (const name of ["a", "b", "c"]) {
    using _frame = scope();
    optimizer.zeroGrad();
    const loss = model.call(input(device, `${name} of rank ${rank}`, 3, 12)).square().sum();
    loss.backward();
    losses.push(group.sum([loss.item()], "loss")[0] ?? NaN);
    norms.push(gradNorm(model.parameters()).item());
    optimizer.step();
  }
  const boxes = [...model.parameters()].map(({ storage: { shard } }) =>
    shard.boxes.map(({ offsets, sizes }) => [...offsets, ...sizes])
  );
  const padding = sharded.unit.segments.map(({ plan }) => plan.padding);
  return { boxes, losses, norms, weights: wholeWeights(sharded), padding };
}

/** The errors of wrong placements; afterwards the model is unchanged. */
export function refuse(
  { device, group }: WorldRank,
): { readonly errors: readonly string[]; readonly kinds: readonly string[] } {
  const model = new Uneven(device);
  model.nameTree();
  const errors = [{ up: 1 }, { up: 2 }, { up: -3 }, { others: 1 }].map((data) =>
    messageOf(() => fullyShard(model, options(model, group, data)))
  );
  return { errors, kinds: [...model.parameters()].map(({ storage }) => storage.kind) };
}

/** Quantizes a chunk to a byte an element, with one scale a rank; pads it to the first rank's. */
function quantized(paddedBy: number): GatherExtension<{ readonly rows: number }> {
  return {
    preAllGather(shard, { chunkShape, shape }) {
      const values = Float32Array.from(shard.toArray());
      const numel = chunkShape.reduce((all, size) => all * size, 1) - paddedBy;
      const scale = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127;
      const bytes = Uint8Array.from({ length: numel }, (_, i) => 128 + Math.round((values[i] ?? 0) / (scale || 1)));
      const { device } = shard;
      const inputs = [tensor(device, bytes, { shape: [numel], dtype: uint8 }), tensor(device, [scale], { shape: [1] })];
      return { inputs, metadata: { rows: shape[0] ?? NaN } };
    },
    postAllGather([bytes, scales], { rows }, out) {
      const [all, factors] = [bytes?.toArray() ?? [], scales?.toArray() ?? []];
      if (out.shape[0] !== rows) throw new Error("the metadata of another parameter");
      const chunk = all.length / factors.length;
      out.copyFromHost(
        Float32Array.from(
          { length: out.numel },
          (_, i) => ((all[i] ?? NaN) - 128) * (factors[Math.floor(i / chunk)] ?? NaN),
        ),
      );
    },
  };
}

/** The calls of an extension on a rank. */
export interface ExtensionReport {
  /** Sizes of what was gathered, in bytes, by unit. */
  readonly gathered: readonly string[];
  /** Farthest that a gathered weight lies from its master, in steps of the quantization. */
  readonly error: number;
  /** True if master weights moved by a step, and by the gradient of the gathered values. */
  readonly moved: boolean;
  readonly numel: number;
}

/** Trains a step of a weight that is gathered quantized. */
export function extend(
  { device, group, rank }: WorldRank,
  { rows, replicas = 1 }: { readonly rows: number; readonly replicas?: number },
): ExtensionReport {
  const mesh = replicas === 1 ? group : deviceMesh(group, { replicate: replicas, shard: group.size / replicas });
  class Scaled extends Module<[x: Tensor], Tensor> {
    readonly weight = new Parameter(device, [rows, 4], { init: { kind: "normal", mean: 0, std: 1 } });
    readonly shift = new Parameter(device, [4]);
    forward(x: Tensor): Tensor {
      return x.matmul(this.weight).add(this.shift);
    }
  }
  const model = new Scaled();
  const extension = quantized(0);
  const sharded = fullyShard(model, {
    mesh,
    reshardAfterForward: true,
    gatherExtension: (parameter) => parameter === model.weight ? extension : undefined,
  });
  initializeParameters(model, 1);
  const gathered: string[] = [];
  group.observe(({ kind, unit, count }) => void (/gather/.test(kind) && gathered.push(`${kind} ${unit} ${count}`)));
  const before = ownedValues(model.weight);
  const [weight = []] = wholeWeights(sharded);
  const { shard } = model.weight.storage;
  const first = (shard.boxes[0]?.offsets[0] ?? 0) * 4;
  const scale = before.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127;
  const error = before.reduce((most, value, i) => Math.max(most, Math.abs((weight[first + i] ?? NaN) - value)), 0) /
    (scale || 1);
  using _frame = scope();
  const x = input(device, `rank ${rank}`, 2, rows);
  model.call(x).sum().backward();
  const grad = [...model.weight.grad?.toArray() ?? []];
  new SGD(model.parameters(), { learningRate: 0.5 }).step();
  const after = ownedValues(model.weight);
  const moved = after.every((value, i) => Math.abs(value - ((before[i] ?? NaN) - 0.5 * (grad[i] ?? NaN))) < 1e-6);
  return { gathered, error, moved, numel: before.length };
}

/** Rank 1's extension gives fewer bytes than rank 0's. */
export function extendUnevenly({ device, group, rank }: WorldRank): string {
  const layer = new Linear(device, 4, 4, { bias: false });
  layer.nameTree();
  const extension = quantized(rank);
  fullyShard(layer, { mesh: group, gatherExtension: () => extension });
  initializeParameters(layer, 1);
  return messageOf(() => {
    layer.call(input(device, "x", 1, 4));
    group.barrier("end");
  });
}

rankFunctions(import.meta.url, { train, refuse, extend, extendUnevenly });
