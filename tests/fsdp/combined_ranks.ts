/** The ranks' code of `combined_test.ts`: features that were tried one at a time elsewhere, together. @module */
import {
  AdamW,
  applyActivationCheckpointing,
  fullyShard,
  type FullyShardedModule,
  type GatherExtension,
  gradNorm,
  registerFsdpForwardMethod,
  replicate,
  type ReplicatedModule,
  scope,
  shareCommContext,
  type Tensor,
} from "../../mod.ts";
import { initializeParameters, Linear, Module, type Parameter } from "../../doors/nn.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** Gradients of what this rank keeps, each beside what a replicated twin has there, as far as they differ. */
function differences(own: Iterable<Parameter>, twin: Iterable<Parameter>): string[] {
  const others = [...twin];
  return [...own].flatMap(({ fqn, grad, storage: { shard } }, i) => {
    const [whole, mine] = [others[i]?.grad?.toArray(), grad?.toArray()];
    if (whole === undefined || mine === undefined) return whole === mine ? [] : [`${fqn}: ${whole} and ${mine}`];
    return elementSlices(shard).flatMap(({ offset, length, local }) =>
      Array.from({ length }, (_, k) => k).filter((k) => !Object.is(mine[local + k], whole[offset + k]))
        .map((k) => `${fqn} ${offset + k}: ${mine[local + k]} and not ${whole[offset + k]}`)
    ).slice(0, 2);
  });
}

/** Two stages. */
class Pipeline extends Module<[x: Tensor], Tensor> {
  readonly first: Stack;
  readonly last: Stack;

  constructor(device: WorldRank["device"]) {
    super();
    this.first = new Stack(device, WIDTH, 2);
    this.last = new Stack(device, WIDTH, 2);
  }

  forward(x: Tensor): Tensor {
    return this.last.call(this.first.call(x));
  }
}

interface Syncs {
  setRequiresGradientSync(sync: boolean): void;
}

function shardStack(model: Stack, { group }: WorldRank): FullyShardedModule {
  for (const layer of model.layers) fullyShard(layer, { mesh: group });
  return fullyShard(model, { mesh: group });
}

/** Two roots of which each is told by itself when to reduce, and a twin that is replicated in two parts. */
export function twoRoots(rank: WorldRank, [shares, checkpoints]: readonly [boolean, boolean]): string[] {
  const { device, group } = rank;
  const [own, twin] = [new Pipeline(device), new Pipeline(device)];
  for (const model of [own, twin]) model.nameTree();
  const roots = [own.first, own.last].map((stage) => shardStack(stage, rank));
  const copies: ReplicatedModule[] = [twin.first, twin.last].map((stage) => replicate(stage, { mesh: group }));
  if (shares) {
    for (const root of roots) root.setMaxReduceScatterInputs(2);
    shareCommContext(roots);
  }
  if (checkpoints) applyActivationCheckpointing([...own.first.layers, ...own.last.layers]);
  for (const model of [own, twin]) initializeParameters(model, 5);
  const optimizers = [own, twin].map((model) => new AdamW(model.parameters()));
  const faults: string[] = [];
  // The roots, of two, that reduce in each micro-batch; each step ends with both.
  const steps = [
    [[false, false], [true, true]],
    [[true, false], [false, true], [true, true]],
    [[false, true], [true, false], [true, false], [true, true]],
    [[true, true]],
  ] as const;
  for (const [i, syncs] of steps.entries()) {
    for (const [k, flags] of syncs.entries()) {
      for (const [model, handles] of [[own, roots], [twin, copies]] as const) {
        handles.forEach((handle: Syncs, place: number) => handle.setRequiresGradientSync(flags[place] === true));
        using _frame = scope();
        model.call(input(device, `${i} ${k} of rank ${rank.rank}`, 3, WIDTH)).sum().backward();
      }
    }
    faults.push(...differences(own.parameters(), twin.parameters()).map((text) => `step ${i}, ${text}`));
    for (const [place, model] of [own, twin].entries()) {
      using _frame = scope();
      const norm = gradNorm(model.parameters()).item();
      if (!(norm > 0)) faults.push(`norm ${norm}`);
      optimizers[place]?.step();
      optimizers[place]?.zeroGrad();
    }
  }
  return faults;
}

/** A root that has a sharded part, a replicated part, and a method that uses both. */
class Mixed extends Module<[x: Tensor], Tensor> {
  readonly body: Stack;
  readonly side: Linear;
  readonly head: Linear;

  constructor(device: WorldRank["device"]) {
    super();
    this.body = new Stack(device, WIDTH, 2);
    this.side = new Linear(device, WIDTH, WIDTH);
    this.head = new Linear(device, WIDTH, WIDTH);
  }

  forward(x: Tensor): Tensor {
    return this.head.call(this.encode(x));
  }

  encode(x: Tensor): Tensor {
    return this.side.call(this.body.call(x)).tanh();
  }
}

/** A part is replicated and ignored by the root; accumulation over both, by forward and by method, against all replicated. */
export function beside(rank: WorldRank, viaMethod: boolean): string[] {
  const { device, group } = rank;
  const [own, twin] = [new Mixed(device), new Mixed(device)];
  for (const model of [own, twin]) model.nameTree();
  const side = replicate(own.side, { mesh: group });
  for (const layer of own.body.layers) fullyShard(layer, { mesh: group });
  const root = fullyShard(own, { mesh: group, ignoredParameters: own.side.parameters() });
  const copy = replicate(twin, { mesh: group });
  for (const model of [own, twin]) initializeParameters(model, 5);
  if (viaMethod) registerFsdpForwardMethod(own, "encode");
  const optimizers = [own, twin].map((model) => new AdamW(model.parameters()));
  const faults: string[] = [];
  for (let step = 0; step < 3; step++) {
    for (const isLast of [false, false, true]) {
      for (const handle of [side, root, copy]) handle.setRequiresGradientSync(isLast);
      for (const model of [own, twin]) {
        using _frame = scope();
        const x = input(device, `${step} ${isLast} of rank ${rank.rank}`, 3, WIDTH);
        (viaMethod ? model.encode(x) : model.call(x)).sum().backward();
      }
    }
    faults.push(...differences(own.parameters(), twin.parameters()).map((text) => `step ${step}, ${text}`));
    for (const optimizer of optimizers) {
      optimizer.step();
      optimizer.zeroGrad();
    }
  }
  return faults;
}

/** Gathers the float32 values as they are. */
const plainExtension: GatherExtension<undefined> = {
  preAllGather(shard, { chunkShape }) {
    const padded = shard.spawn(chunkShape, shard.dtype, "padded");
    padded.device.kernels.fill({ dtype: padded.dtype, n: padded.numel, value: 0, dst: padded.ptr });
    padded.device.copy(padded.ptr, shard.ptr, shard.numel * 4);
    return { inputs: [padded], metadata: undefined };
  },
  postAllGather([all], _metadata, out) {
    if (all !== undefined) out.device.copy(out.ptr, all.ptr, out.numel * 4);
  },
};

/** The parts of a step between which custom collectives are set and unset. */
const MOMENTS = ["before", "between", "after"] as const;

/** Custom collectives that come and go between forward, backward and the next, with extensions, placements and prefetches. */
export function oddOrders(rank: WorldRank, kind: "plain" | "extension" | "placed"): string[] {
  const { device, group } = rank;
  const [own, twin] = [new Stack(device, WIDTH, 3), new Stack(device, WIDTH, 3)];
  for (const model of [own, twin]) model.nameTree();
  const is2d = ({ shape }: Parameter): boolean => shape.length === 2;
  const options = {
    mesh: group,
    backwardPrefetch: true,
    ...kind === "extension" ? { gatherExtension: (p: Parameter) => is2d(p) ? plainExtension : undefined } : {},
    ...kind === "placed" ? { shardPlacement: (p: Parameter) => is2d(p) ? 0 : undefined } : {},
  };
  const layers = own.layers.map((layer) => fullyShard(layer, options));
  const root = fullyShard(own, options);
  layers[0]?.setModulesToForwardPrefetch(layers.slice(1));
  replicate(twin, { mesh: group });
  for (const model of [own, twin]) initializeParameters(model, 5);
  let calls = 0;
  const set = (handle: FullyShardedModule | undefined, on: boolean): void => {
    handle?.setCustomAllGather(
      on
        ? ({ group, dst, src, byteLength, unit, phase }) => {
          calls++;
          return group.allGather(dst, src, byteLength, unit, phase);
        }
        : undefined,
    );
    handle?.setCustomReduceScatter(
      on
        ? ({ group, unit, phase, ...args }) => {
          calls++;
          return group.reduceScatter(args, unit, phase);
        }
        : undefined,
    );
    handle?.setAllReduceHook(on ? () => void calls++ : undefined);
  };
  const faults: string[] = [];
  const handles = [root, ...layers];
  for (const [i, handle] of handles.entries()) {
    for (const on of MOMENTS) {
      for (const off of MOMENTS) {
        if (on === "before") set(handle, true);
        for (const model of [own, twin]) {
          model.zeroGrad();
          using _frame = scope();
          const loss = model.call(input(device, `${i} ${on} ${off} of rank ${rank.rank}`, 3, WIDTH)).sum();
          if (model === own && on === "between") set(handle, true);
          if (model === own && off === "between") set(handle, false);
          loss.backward();
          if (model === own && on === "after") set(handle, true);
        }
        if (off === "after") set(handle, false);
        faults.push(
          ...differences(own.parameters(), twin.parameters()).map((text) =>
            `${handle.unit.name} ${on} ${off}, ${text}`
          ),
        );
        set(handle, false);
      }
    }
  }
  return calls > 0 ? faults : ["no custom collective was called"];
}

/** A unit that others prefetch becomes part of the root's, or goes. What each rank's steps threw, and how gradients differ. */
export function prefetchGone(rank: WorldRank, how: "merged" | "disposed"): string[] {
  const { device, group } = rank;
  const [own, twin] = [new Stack(device, WIDTH, 3), new Stack(device, WIDTH, 3)];
  for (const model of [own, twin]) {
    // The head computes with a layer's weight.
    if (how === "merged") Object.assign(model.head, { weight: model.layers[1]?.linear.weight });
    model.nameTree();
  }
  const [first, middle, last] = own.layers.map((layer) => fullyShard(layer, { mesh: group }));
  if (first === undefined || middle === undefined || last === undefined) return ["no layers"];
  first.setModulesToForwardPrefetch([middle, last]);
  last.setModulesToBackwardPrefetch([middle, first]);
  if (how === "disposed") middle.dispose();
  fullyShard(own, { mesh: group });
  replicate(twin, { mesh: group });
  return Array.from({ length: 2 }, (_, step) => {
    for (const model of [own, twin]) {
      if (step === 0) initializeParameters(model, 5);
      model.zeroGrad();
      using _frame = scope();
      model.call(input(device, `${step} of rank ${rank.rank}`, 3, WIDTH)).sum().backward();
    }
    return differences(own.parameters(), twin.parameters());
  }).flat();
}

rankFunctions(import.meta.url, { twoRoots, beside, oddOrders, prefetchGone });
