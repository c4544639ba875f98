/** The ranks' code of `strategies_test.ts`. @module */
import { cpuOffloadPolicy, fullyShard, replicate, scope, SGD } from "../../mod.ts";
import { type CallKind, deviceMesh } from "../../doors/comm.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const [WIDTH, BLOCKS, MICRO_BATCHES] = [64, 2, 2];

/** The memory and calls of a rank in one step of two micro-batches. */
export interface StrategyReport {
  /** Calls by kind. */
  readonly calls: Readonly<Partial<Record<CallKind, number>>>;
  /** Elements of weights that this rank keeps, of all. */
  readonly share: number;
  /** Units that are whole after the first forward, and after its backward. */
  readonly whole: readonly [number, number];
  /** Bytes of whole gradients between the micro-batches, as elements of all weights. */
  readonly gradients: number;
  /** True if gradients lie in host memory after the backward. */
  readonly isOffloaded: boolean;
  /** The weights after the step, of all ranks with other parts, as far as this rank keeps them. */
  readonly weights: readonly number[];
}

/** Runs a step under a strategy of FSDP1, or a stage of DeepSpeed. */
export function runStrategy({ device, group, rank }: WorldRank, name: string): StrategyReport {
  const model = new Stack(device, WIDTH, BLOCKS);
  model.nameTree();
  const isHybrid = name.startsWith("HYBRID");
  const mesh = isHybrid ? deviceMesh(group, { replicate: 2, shard: group.size / 2 }) : group;
  const keeps = !name.startsWith("FULL_SHARD") && name !== "HYBRID_SHARD";
  const offload = name.includes("offload") ? { offloadPolicy: cpuOffloadPolicy() } : {};
  const options = keeps ? { mesh, reshardAfterForward: false } : { mesh, ...offload };
  const isReplicated = name === "NO_SHARD, stage 0";
  if (!isReplicated) { for (const layer of model.layers) fullyShard(layer, options); }
  initializeParameters(model, 5);
  const handle = isReplicated ? replicate(model, { mesh: group }) : fullyShard(model, options);
  const units = "units" in handle ? handle.units() : [];
  const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
  const calls: Partial<Record<CallKind, number>> = {};
  group.observe(({ kind }) => void (calls[kind] = (calls[kind] ?? 0) + 1));
  const wholeUnits = (): number => units.filter(({ unsharded }) => unsharded).length;
  let [afterForward, afterBackward, gradients] = [0, 0, 0];
  const numel = [...model.parameters()].reduce((sum, parameter) => sum + parameter.numel, 0);
  for (let i = 0; i < MICRO_BATCHES; i++) {
    using _frame = scope();
    const isLast = i === MICRO_BATCHES - 1;
    if (name === "stage 1" && "setReshardAfterBackward" in handle) {
      handle.setRequiresGradientSync(isLast);
      handle.setReshardAfterBackward(isLast);
    }
    const loss = model.call(input(device, `${i} of ${rank}`, 2, WIDTH)).square().sum();
    if (i === 0) afterForward = wholeUnits();
    loss.backward();
    if (i > 0) continue;
    afterBackward = wholeUnits();
    const held = device.allocator.owners(Infinity).filter(({ owner }) => owner.endsWith(" gradients"));
    gradients = held.reduce((sum, { bytes }) => sum + bytes, 0) / 4 / numel;
  }
  const counted = { ...calls };
  const isOffloaded = [...model.parameters()].every(({ grad }) => grad !== undefined && grad.device !== device);
  optimizer.step();
  const owned = [...model.parameters()].flatMap((parameter) => [...ownedValues(parameter)]);
  const { gather, "all-gather": allGather, "reduce-scatter": scatter, "all-reduce": reduce } = counted;
  const known = Object.entries({
    gather,
    "all-gather": allGather,
    "reduce-scatter": scatter,
    "all-reduce": reduce,
  });
  return {
    calls: Object.fromEntries(known.filter(([, count]) => count !== undefined)),
    share: owned.length / numel,
    whole: [afterForward, afterBackward],
    gradients,
    isOffloaded,
    weights: [owned.reduce((sum, value) => sum + value, 0), owned.reduce((sum, value) => sum + value * value, 0)],
  };
}

rankFunctions(import.meta.url, { runStrategy });
