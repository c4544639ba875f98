/** The states of a segment: the moves that the table has, and what a program meets that asks for another one. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fullyShard, type FullyShardedModule, scope } from "../../mod.ts";
import { UseAfterDisposeError } from "../../doors/errors.ts";
import { initializeParameters, Linear } from "../../doors/nn.ts";
import { MemoryState, SEGMENT_MOVES, type StateMachine } from "../../src/fsdp/states.ts";
import { messageOf } from "../support/message.ts";
import { input } from "./modules.ts";
import { openRank } from "./run.ts";
import type { Rank } from "./scenarios.ts";

const WIDTH = 8;

/** The moves that are not refused, from every state that moves lead to from the first one: `state: move -> next state`. */
function walk<State extends string, Move extends string>(kind: StateMachine<State, Move>): string[] {
  const moves = Object.keys(kind.moves).filter((name): name is Move => name in kind.moves);
  const [seen, lines]: [Set<State>, string[]] = [new Set([kind.first]), []];
  const paths = new Map<State, readonly Move[]>([[kind.first, []]]);
  for (const state of seen) {
    for (const move of moves) {
      const memory = new MemoryState(kind, () => "layers.0");
      const path = paths.get(state) ?? assert.fail(`no path to ${state}`);
      for (const step of path) memory.take(step);
      assert.equal(memory.state, state);
      if (messageOf(() => memory.take(move)) !== "") {
        assert.equal(memory.state, state, "a refused move changes nothing");
        continue;
      }
      lines.push(`${state}: ${move} -> ${memory.state}`);
      if (!seen.has(memory.state)) paths.set(memory.state, [...path, move]);
      seen.add(memory.state);
    }
  }
  return lines;
}

describe("SEGMENT_MOVES", () => {
  it("takes parameters from sharded to unsharded and back, over a gather", () => {
    assert.deepEqual(walk(SEGMENT_MOVES.parameters), [
      "unopened: open -> sharded",
      "unopened: dispose -> disposed",
      "sharded: gather -> gathering",
      "sharded: dispose -> disposed",
      "gathering: fail to gather -> sharded",
      "gathering: use -> unsharded",
      "unsharded: reshard -> sharded",
      "unsharded: reshard post forward -> sharded-post-forward",
      "sharded-post-forward: gather -> gathering",
      "sharded-post-forward: reshard -> sharded",
    ]);
  });

  it("lets the unsharded gradient be handed over only where there is one", () => {
    assert.deepEqual(walk(SEGMENT_MOVES.unshardedGradient), [
      "none: contribute -> accumulating",
      "none: free -> none",
      "accumulating: contribute -> accumulating",
      "accumulating: hand over -> none",
      "accumulating: free -> none",
    ]);
  });

  it("all-reduces a partial gradient only, and keeps it through other reductions", () => {
    const lines = walk(SEGMENT_MOVES.reducedGradient);
    assert.deepEqual(lines.filter((line) => line.includes("all-reduce")), ["partial: all-reduce -> reducing"]);
    assert.deepEqual(lines.filter((line) => line.startsWith("partial: ") && line.endsWith("-> partial")), [
      "partial: reduce -> partial",
      "partial: reduce partially -> partial",
      "partial: wait for -> partial",
    ]);
    assert.deepEqual(lines.filter((line) => line.endsWith("-> reduced")), [
      "reducing: wait for -> reduced",
      "reduced: wait for -> reduced",
    ]);
    assert.equal(lines.filter((line) => line.endsWith("free -> none")).length, 4, "each state can be freed");
  });
});

interface Sharded {
  readonly rank: Rank;
  readonly layer: Linear;
  readonly handle: FullyShardedModule;
}

async function shard(): Promise<Sharded> {
  const rank = await openRank();
  const layer = new Linear(rank.device, WIDTH, WIDTH);
  const handle = fullyShard(layer, { mesh: rank.group });
  initializeParameters(layer, 5);
  return { rank, layer, handle };
}

function backward({ rank, layer }: Sharded): number[] {
  layer.weight.zeroGrad();
  layer.bias?.zeroGrad();
  using _frame = scope();
  layer.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
  return [...layer.weight.grad?.toArray() ?? []];
}

describe("a custom all-gather", () => {
  const remedy = ". A custom all-gather or reduce-scatter must not call unshard() or reshard() on its own unit";
  for (const [call, expected] of [["unshard", "gather"], ["reshard", "reshard"]] as const) {
    it(`that calls ${call}() of its own unit is refused, with the state, and the next step is as ever`, async () => {
      const sharded = await shard();
      const [{ rank, handle, layer }, first] = [sharded, backward(sharded)];
      const before = rank.device.allocator.stats.inUse;
      handle.setCustomAllGather(({ group, dst, src, byteLength, unit, phase }) => {
        handle[call]();
        return group.allGather(dst, src, byteLength, unit, phase);
      });
      const begins = call === "unshard"
        ? "'sharded' or 'sharded-post-forward'"
        : "'unsharded' or 'sharded-post-forward'";
      assert.equal(
        messageOf(() => backward(sharded)),
        `InternalError: Internal: invalid transition '${expected}' of the parameters of 'Linear': state is 'gathering', ` +
          `allowed from ${begins}${remedy}`,
      );
      handle.setCustomAllGather(undefined);
      assert.equal(layer.weight.grad, undefined);
      assert.deepEqual(backward(sharded), first);
      assert.equal(rank.device.allocator.stats.inUse, before, "nothing of the refused step is left");
    });
  }
});

describe("a partial gradient", () => {
  it("waits through a direct reduction, whose sum it is added to, and is freed with it", async () => {
    const sharded = await shard();
    const { rank, layer, handle } = sharded;
    const once = backward(sharded);
    for (const parameter of layer.parameters()) parameter.zeroGrad();
    const before = rank.device.allocator.stats.inUse;
    const again = (): void => {
      using _frame = scope();
      layer.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
    };
    const shown = (): number[] | undefined => layer.weight.grad && [...layer.weight.grad.toArray()];
    handle.setAllReduceHook(() => {});
    handle.setRequiresAllReduce(false);
    again();
    assert.equal(shown(), undefined, "it is not shown");
    handle.setAllReduceHook(undefined);
    again();
    assert.equal(shown(), undefined, "neither is the sum of the direct reduction");
    handle.setRequiresAllReduce(true);
    again();
    const sums = once.map((value) => Math.fround(value + Math.fround(value + value)));
    assert.deepEqual(shown(), sums);
    for (const parameter of layer.parameters()) parameter.zeroGrad();
    assert.equal(rank.device.allocator.stats.inUse, before);
  });
});

describe("a unit that was disposed", () => {
  it("is not gathered any more", async () => {
    const { rank, layer, handle } = await shard();
    handle.dispose();
    fullyShard(layer, { mesh: rank.group });
    initializeParameters(layer, 5);
    assert.throws(() => handle.unshard(), UseAfterDisposeError);
    const message = "Cannot use 'Linear': its sharding was disposed, undone or merged into another unit";
    assert.throws(() => handle.unshard(), { message });
    handle.reshard();
  });
});
