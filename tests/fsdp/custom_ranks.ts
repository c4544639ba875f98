/** The ranks' code of `custom_test.ts`. @module */
import { fullyShard, type FullyShardedModule, gradNorm, replicate, scope, SGD } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

function shardStack({ device, group }: WorldRank): { model: Stack; layer: FullyShardedModule } {
  const model = new Stack(device, WIDTH, 1);
  const [layer] = model.layers.map((block) => fullyShard(block, { mesh: group }));
  if (layer === undefined) throw new Error("no layer");
  fullyShard(model, { mesh: group });
  initializeParameters(model, 5);
  return { model, layer };
}

function backward({ device, rank }: WorldRank, model: Stack, name: string): void {
  using _frame = scope();
  model.call(input(device, `${name} of rank ${rank}`, 3, WIDTH)).sum().backward();
}

function gradients(model: Stack): readonly (readonly number[])[] {
  return [...model.parameters()].map(({ grad }) => [...grad?.toArray() ?? []]);
}

/** The calls of a rank's own collectives. */
export interface CustomReport {
  readonly calls: readonly string[];
  /** The same bits as the library's. */
  readonly same: boolean;
  /** Of the hook: elements that it got, and whether it doubled what two backwards gave. */
  readonly reduced: readonly number[];
  readonly doubled: boolean;
}

/** Moves one unit by collectives of its own, which are the group's. */
export function replaceCollectives(rank: WorldRank): CustomReport {
  const [own, library, hooked] = [shardStack(rank), shardStack(rank), shardStack(rank)];
  const calls: string[] = [];
  own.layer.setCustomAllGather(({ group, dst, src, byteLength, unit, phase }) => {
    calls.push(`gather ${unit} ${phase} ${byteLength}`);
    return group.allGather(dst, src, byteLength, unit, phase);
  });
  own.layer.setCustomReduceScatter(({ group, unit, phase, ...args }) => {
    calls.push(`reduce ${unit} ${phase} ${args.slices.length}`);
    return group.reduceScatter(args, unit, phase);
  });
  const reduced: number[] = [];
  hooked.layer.setAllReduceHook((sum) => {
    reduced.push(sum.numel);
    const [ptr, n] = [sum.ptr, sum.numel];
    using factor = rank.device.scalars.make(2);
    rank.device.kernels.scaleBy({ dtype: sum.dtype, n, dst: ptr, src: ptr, factor: factor.ptr });
  });
  for (const { model } of [own, library, hooked]) for (const name of ["a", "b"]) backward(rank, model, name);
  const [ours, theirs, twice] = [own, library, hooked].map(({ model }) => gradients(model));
  own.layer.setCustomAllGather(undefined);
  own.layer.setCustomReduceScatter(undefined);
  backward(rank, own.model, "c");
  const doubled = theirs?.every((list, i) =>
    // The head is another unit, without the hook.
    list.every((value, k) => twice?.[i]?.[k] === (i < 2 ? Math.fround(2 * value) : value))
  );
  return { calls, same: JSON.stringify(ours) === JSON.stringify(theirs), reduced, doubled: doubled === true };
}

/** The parallelism of a model. */
export type Mode = "plain" | "replicate" | "fullyShard";

/** The steps that a rank takes inside the backward. */
export interface InBackwardReport {
  /** Parameters in the order in which their gradients were complete, of each backward. */
  readonly told: readonly (readonly string[])[];
  /** True if the weights equal those of steps after the backward. */
  readonly same: boolean;
  /** Gradients that are left after the last backward. */
  readonly left: number;
}

/** Three steps in the backward, before the second of which a micro-batch is not reduced; the last leaves the layer out. */
export function stepInBackward(rank: WorldRank, mode: Mode): InBackwardReport {
  const open = (): { model: Stack; sync: (on: boolean) => void } => {
    const model = new Stack(rank.device, WIDTH, 1);
    model.nameTree();
    const handle = mode === "plain"
      ? undefined
      : (mode === "replicate" ? replicate : fullyShard)(model, { mesh: rank.group });
    initializeParameters(model, 5);
    return { model, sync: (on) => handle?.setRequiresGradientSync(on) };
  };
  const [inside, after] = [open(), open()];
  const told: string[][] = [];
  const optimizers = new Map(
    [...inside.model.parameters()].map((parameter) =>
      [parameter, new SGD([parameter], { learningRate: 0.1 })] as const
    ),
  );
  for (const [parameter, optimizer] of optimizers) {
    parameter.registerPostAccumulateGradHook(() => {
      told.at(-1)?.push(parameter.fqn);
      optimizer.step();
      parameter.zeroGrad();
    });
  }
  const ended = inside.model.head.weight.registerPostAccumulateGradHook(() => told.at(-1)?.push("ended"));
  ended();
  const whole = new SGD(after.model.parameters(), { learningRate: 0.1 });
  const run = (name: string, { model, sync }: typeof inside, syncs: boolean): void => {
    sync(syncs);
    model.order = name === "d" ? [] : [0];
    backward(rank, model, name);
  };
  for (const [name, syncs] of [["a", true], ["b", mode === "plain"], ["c", true], ["d", true]] as const) {
    told.push([]);
    run(name, inside, syncs);
    run(name, after, syncs);
    if (!syncs) continue;
    if (mode !== "plain") gradNorm(after.model.parameters());
    whole.step();
    whole.zeroGrad();
  }
  const values = [inside, after].map(({ model }) =>
    JSON.stringify([...model.parameters()].map((own) => [...ownedValues(own)]))
  );
  const left = [...inside.model.parameters()].filter(({ grad }) => grad !== undefined).length;
  return { told, same: values[0] === values[1], left };
}

rankFunctions(import.meta.url, { replaceCollectives, stepInBackward });
