/** Features of FSDP that meet in one model: two roots, replicated parts, methods, custom collectives in odd orders. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { onlyInAll, sharedTest as it, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { beside, oddOrders, prefetchGone, twoRoots } from "./combined_ranks.ts";

const WORLDS = [
  ...[[3, "loopback"]] as const,
  ...onlyInAll([[2, "shm"], [1, "loopback"], [4, "loopback"]] as const),
] as const;

const isFirst = (place: number): boolean => place === 0;

describe("two roots", () => {
  for (const [size, over] of WORLDS) {
    for (const [shares, checkpoints] of usualFirst([[true, true], [false, false], [true, false]] as const, isFirst)) {
      const how = `${shares ? ", sharing inputs" : ""}${checkpoints ? ", checkpointed" : ""}`;
      it(`reduce each when it is told to, as replicated parts do${how}, on ${size} ranks over ${over}`, async () => {
        for (const faults of valuesOf(await world(size, twoRoots, { over, data: [shares, checkpoints] }))) {
          assert.deepEqual(faults, []);
        }
      });
    }
  }
});

describe("a replicated part that the root ignores", () => {
  for (const [size, over] of WORLDS) {
    for (const viaMethod of usualFirst([true, false], isFirst)) {
      const how = viaMethod ? "by a method" : "by the forward";
      it(`accumulates beside sharded ones as if all were replicated, ${how}, on ${size} ranks over ${over}`, async () => {
        for (const faults of valuesOf(await world(size, beside, { over, data: viaMethod }))) {
          assert.deepEqual(faults, []);
        }
      });
    }
  }
});

describe("custom collectives that come and go", () => {
  for (const [size, over] of WORLDS) {
    for (const kind of ["plain", "extension", "placed"] as const) {
      it(`between forward and backward, of ${kind} units, give the same bits on ${size} ranks over ${over}`, async () => {
        for (const faults of valuesOf(await world(size, oddOrders, { over, data: kind }))) assert.deepEqual(faults, []);
      });
    }
  }
});

describe("a unit that others prefetch", () => {
  for (const how of ["merged", "disposed"] as const) {
    it(`is left alone by them when it is ${how}`, async () => {
      for (const faults of valuesOf(await world(2, prefetchGone, { data: how }))) assert.deepEqual(faults, []);
    });
  }
});
