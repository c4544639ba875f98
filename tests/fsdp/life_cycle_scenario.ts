/** A step of a sharded stack on any number of ranks, beside a step of an unsharded one. @module */
import { AdamW, fullyShard, type FullyShardedModule, gradNorm, noGrad, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { input, Stack } from "./modules.ts";
import type { Rank } from "./scenarios.ts";

/** Width of every layer: small, but wide enough that ranks own ragged shares. */
export const WIDTH = 20;

/** The options with which a stack is sharded. */
export interface ShardCase {
  readonly depth: number;
  readonly reshardAfterForward?: boolean;
  readonly rootReshard?: boolean;
  readonly backwardPrefetch?: boolean;
}

/** A sharded stack: one unit a layer, one for the head. */
export interface ShardedStack {
  readonly model: Stack;
  readonly sharded: FullyShardedModule;
}

/** Builds, shards bottom-up and initializes. */
export function shardStack({ device, group }: Rank, options: ShardCase): ShardedStack {
  const { depth, reshardAfterForward, rootReshard, backwardPrefetch = false } = options;
  const model = new Stack(device, WIDTH, depth);
  const blockChoice = reshardAfterForward === undefined ? {} : { reshardAfterForward };
  for (const layer of model.layers) fullyShard(layer, { mesh: group, backwardPrefetch, ...blockChoice });
  const rootChoice = rootReshard === undefined ? {} : { reshardAfterForward: rootReshard };
  const sharded = fullyShard(model, { mesh: group, backwardPrefetch, ...rootChoice });
  initializeParameters(model, 5);
  return { model, sharded };
}

/** Gathers and reductions, in order: `gather 0 forward`, `reduce head`. */
export function traffic({ calls }: Rank): string[] {
  return calls.filter(({ kind }) => kind === "gather" || kind === "reduce-scatter").map(({ kind, unit, phase }) => {
    const place = /layers\.(\d+)/.exec(unit)?.[1] ?? "root";
    return kind === "gather" ? `gather ${place} ${phase}` : `reduce ${place}`;
  });
}

/** The loss of one named micro-batch; runs the backward. */
export function forwardBackward({ device }: Rank, { model }: ShardedStack, name: string): number {
  using _frame = scope();
  const loss = model.call(input(device, name, 3, WIDTH)).sum();
  loss.backward();
  return loss.item();
}

/** The results of the life cycle scenario. */
export interface LifeCycle {
  readonly steps: readonly (readonly string[])[];
  readonly norms: readonly number[];
}

function isShardCase(data: unknown): data is ShardCase {
  return typeof data === "object" && data !== null && "depth" in data;
}

/** A step, an eval forward, an optimizer step, and one more step: traffic of each, and the norms. */
export function lifeCycle(rank: Rank, data: unknown): LifeCycle {
  if (!isShardCase(data)) throw new Error("not a shard case");
  const stack = shardStack(rank, data);
  const optimizer = new AdamW(stack.model.parameters());
  const [steps, norms]: [string[][], number[]] = [[], []];
  const record = (body: () => void): void => {
    rank.calls.length = 0;
    body();
    steps.push(traffic(rank));
  };
  record(() => forwardBackward(rank, stack, `rank ${rank.group.rank}`));
  norms.push(gradNorm(stack.model.parameters()).item());
  record(() => {
    using _frame = scope();
    noGrad(() => stack.model.call(input(rank.device, "eval", 3, WIDTH)));
  });
  optimizer.step();
  optimizer.zeroGrad();
  record(() => forwardBackward(rank, stack, `rank ${rank.group.rank}`));
  norms.push(gradNorm(stack.model.parameters()).item());
  stack.sharded.dispose();
  return { steps, norms };
}
