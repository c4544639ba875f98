/** The ranks' code of `cut_test.ts`. @module */
import { cutParameters, deviceMesh } from "../../doors/comm.ts";
import { initializeParameters, Linear } from "../../doors/nn.ts";
import { fullyShard, replicate } from "../../mod.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Errors of cuts that are impossible on 4 ranks, and the parameters after them. */
export function refuseCuts({ group, device, rank }: WorldRank): readonly (readonly [string, string])[] {
  const mesh = deviceMesh(group, { shard: 2, tensor: 2 });
  const tensor = mesh.get("tensor");
  const acts: Readonly<Record<string, (layer: Linear, other: Linear) => unknown>> = {
    "two axes": (layer) => cutParameters(mesh, new Map([[layer.weight, { dim: 0 }]])),
    "no such dim": ({ weight }, other) =>
      cutParameters(tensor, new Map([[other.weight, { dim: 0 }], [weight, { dim: 2 }]])),
    "packs that do not divide": ({ weight }) => cutParameters(tensor, new Map([[weight, { dim: 0, packs: 4 }]])),
    "nothing for the last ranks": ({ weight }) =>
      cutParameters(mesh.flatten(["shard", "tensor"], "all"), new Map([[weight, { dim: 1 }]])),
    "other rules": ({ weight }) => cutParameters(tensor, new Map([[weight, { dim: rank % 2 }]])),
    "wrong on one rank": ({ weight }) => cutParameters(tensor, new Map([[weight, { dim: rank === 1 ? 5 : 0 }]])),
    "values": (layer) => {
      initializeParameters(layer, 1);
      cutParameters(tensor, new Map([[layer.weight, { dim: 0 }]]));
    },
    "sharded": (layer) => {
      fullyShard(layer, { mesh: mesh.get("shard") });
      cutParameters(tensor, new Map([[layer.weight, { dim: 0 }]]));
    },
    "the same axis twice": ({ weight }) => {
      const undo = cutParameters(tensor, new Map([[weight, { dim: 0 }]]));
      try {
        cutParameters(tensor, new Map([[weight, { dim: 1 }]]));
      } finally {
        undo();
      }
    },
    "shards over the axis": (layer) => {
      const undo = cutParameters(tensor, new Map([[layer.weight, { dim: 0 }]]));
      try {
        fullyShard(layer, { mesh });
      } finally {
        undo();
      }
    },
    "copies over the axis": (layer) => {
      const undo = cutParameters(tensor, new Map([[layer.weight, { dim: 0 }]]));
      try {
        replicate(layer, { mesh: group });
      } finally {
        undo();
      }
    },
    "uneven chunks of a dim": (layer) => {
      cutParameters(tensor, new Map([[layer.weight, { dim: 1 }]]));
      fullyShard(layer, { mesh: mesh.get("shard"), shardPlacement: () => 1 });
    },
  };
  return Object.entries(acts).map(([name, act]) => {
    const [layer, other] = [new Linear(device, 5, 6, { bias: false }), new Linear(device, 4, 4, { bias: false })];
    const error = messageOf(() => act(layer, other));
    group.barrier(name);
    return [name, `${error} | [${layer.weight.shape}] [${other.weight.shape}]`];
  });
}

/** The elements that a rank holds of a parameter that two axes cut. */
export interface CutTwice {
  readonly shape: readonly number[];
  readonly values: readonly number[];
  readonly boxes: unknown;
}

/** Cuts over two axes, one after the other, and shards over a third. */
export function cutTwice({ group, device }: WorldRank, dims: readonly [number, number]): CutTwice {
  const mesh = deviceMesh(group, { shard: 2, first: 2, second: 2 });
  const layer = new Linear(device, 10, 6, { bias: false });
  cutParameters(mesh.get("first"), new Map([[layer.weight, { dim: dims[0] }]]));
  cutParameters(mesh.get("second"), new Map([[layer.weight, { dim: dims[1] }]]));
  fullyShard(layer, { mesh: mesh.get("shard") });
  initializeParameters(layer, 3);
  const { weight, weight: { shape, storage: { shard: { boxes } } } } = layer;
  return { shape, values: [...ownedValues(weight)], boxes };
}

/** The whole weight on one rank. */
export function wholeWeight({ device }: WorldRank): readonly number[] {
  const layer = new Linear(device, 10, 6, { bias: false });
  initializeParameters(layer, 3);
  return [...layer.weight.toArray()];
}

/** Shards a cut parameter where memory fails, at whatever place: what is left, and that it goes well then. */
export function shardWithoutMemory({ group, device }: WorldRank): readonly string[] {
  const mesh = deviceMesh(group, { shard: 2, tensor: 2 });
  const layer = new Linear(device, 10, 6);
  const undo = cutParameters(mesh.get("tensor"), new Map([[layer.weight, { dim: 0 }]]));
  const before = device.allocator.stats.inUse;
  const faults: string[] = [];
  for (let place = 0; place < 20; place++) {
    using failing = failAllocation([device.allocator], place);
    const error = messageOf(() => fullyShard(layer, { mesh: mesh.get("shard") }));
    if (error === "") {
      if (failing.count > place) faults.push("not all failed");
      break;
    }
    const { inUse } = device.allocator.stats;
    if (inUse !== before) faults.push(`${inUse - before} bytes left at ${place}`);
    if (layer.weight.storage.kind !== "plain" || `${layer.weight.shape}` !== "3,10") faults.push(`changed at ${place}`);
  }
  const errors = [messageOf(undo)];
  return [...faults, ...errors, `${layer.weight.shape} of ${layer.weight.globalShape}`];
}

rankFunctions(import.meta.url, { refuseCuts, cutTwice, wholeWeight, shardWithoutMemory });
