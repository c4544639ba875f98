/** The planner of flat segments, on random shapes and on those of real models. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { keyOf, uniformInt } from "../../mod.ts";
import { planSegment, type SegmentPlan, shareOf } from "../../src/fsdp/layout.ts";

type Shape = readonly number[];

const numelOf = (shape: Shape): number => shape.reduce((n, size) => n * size, 1);
const totalOf = (shapes: readonly Shape[]): number => shapes.reduce((n, shape) => n + numelOf(shape), 0);

/** One Llama block: norms, q, k, v, o, gate, up, down. */
function block(hidden: number, intermediate: number, kv: number): Shape[] {
  const [h, f] = [hidden, intermediate];
  return [[h, h], [kv, h], [kv, h], [h, h], [f, h], [f, h], [h, f], [h], [h]];
}

/** Checks all that must hold of a plan whatever the shapes; returns whether all cuts fall between rows of dim 0. */
function check(plan: SegmentPlan, shapes: readonly Shape[], world: number, alignment: number): boolean {
  assert.equal(plan.world, world);
  assert.equal(plan.runLength % alignment, 0);
  let [end, outer] = [0, true];
  for (const [i, shape] of shapes.entries()) {
    const offset = plan.offsets[i] ?? NaN;
    const numel = numelOf(shape);
    assert.equal(offset % alignment, 0, `parameter ${i} starts at ${offset}`);
    assert.ok(offset >= end, `parameter ${i} overlaps the one before it`);
    end = offset + numel;
    let next = 0;
    for (let rank = 0; rank < world; rank++) {
      const share = shareOf(plan, offset, numel, rank);
      assert.ok(share.length >= 0 && share.runOffset >= 0 && share.runOffset + share.length <= plan.runLength);
      if (share.length === 0) continue;
      assert.equal(share.offset, next, `rank ${rank} of parameter ${i} goes on where the last one ended`);
      assert.equal(
        rank * plan.runLength + share.runOffset,
        offset + share.offset,
        "the share lies where the parameter does",
      );
      next += share.length;
      if (next === numel) continue;
      assert.equal(next % (shape.length > 1 ? shape.at(-1) ?? 1 : 1), 0, `a cut inside a row of [${shape.join(", ")}]`);
      if (next % numelOf(shape.slice(1)) !== 0) outer = false;
    }
    assert.equal(next, numel, `all of parameter ${i} is owned`);
  }
  assert.ok(end <= plan.runLength * world);
  return outer;
}

function padding(plan: SegmentPlan, shapes: readonly Shape[]): number {
  return plan.runLength * plan.world / totalOf(shapes) - 1;
}

describe("planSegment()", () => {
  it("owns every element once and cuts between rows, for any shapes and worlds", () => {
    const key = keyOf(3, "layout");
    let draws = 0;
    const draw = (limit: number): number => uniformInt(key, draws++, limit);
    for (let i = 0; i < 300; i++) {
      const sizes = [1, 2, 3, 7, 64, 65, 128, 257];
      const shapes = Array.from({ length: 1 + draw(6) }, () => {
        return Array.from({ length: draw(4) }, () => sizes[draw(sizes.length)] ?? 1);
      });
      const world = 1 + draw(16);
      const alignment = [64, 128][draw(2)] ?? 64;
      const plan = planSegment(shapes, world, alignment);
      check(plan, shapes, world, alignment);
      assert.deepEqual(planSegment(shapes, world, alignment), plan, "a pure function");
    }
  });

  it("takes shapes that are hard to divide", () => {
    const hard: readonly (readonly [shapes: Shape[], world: number])[] = [
      [[[3]], 16],
      [[[]], 3],
      [[[0, 5], [5, 0], [2]], 3],
      [[[100_003], [1]], 7],
      [[[1, 100_003], [1, 50_021], [1, 99_991], [4, 4]], 3],
      [[[7, 8191], [13, 4093]], 16],
      [[[1, 2 ** 28 + 1], [3, 100_003], [7]], 64],
    ];
    for (const [shapes, world] of hard) check(planSegment(shapes, world, 64), shapes, world, 64);
    const huge = [[2 ** 28 + 5]];
    assert.ok(padding(planSegment(huge, 7, 64), huge) < 1e-4, "a vector can be cut anywhere");
  });

  it("pads dense transformer units by less than 0.25 %", () => {
    const models: readonly (readonly [block: Shape[], worlds: readonly number[]])[] = [
      [block(256, 688, 128), [1, 2, 3, 4]],
      [block(768, 2048, 768), [1, 2, 3, 4, 5, 6, 7, 8]],
      [block(4096, 14336, 1024), [2, 3, 4, 6, 8, 12, 16, 24, 32, 64]],
      [[[128_256, 4096], [4096], [128_256, 4096]], [2, 3, 4, 5, 7, 8, 16, 32, 64]],
    ];
    for (const [shapes, worlds] of models) {
      for (const world of worlds) {
        const plan = planSegment(shapes, world, 64);
        assert.ok(check(plan, shapes, world, 64), "cuts between rows of dim 0");
        assert.ok(padding(plan, shapes) <= 0.0025, `${padding(plan, shapes)} on ${world} ranks`);
      }
    }
  });

  it("cuts fused experts between inner rows rather than pad", () => {
    const shapes = [[8, 48, 64]];
    for (let world = 1; world <= 16; world++) {
      const plan = planSegment(shapes, world, 64);
      const outer = check(plan, shapes, world, 64);
      assert.equal(plan.runLength, Math.ceil(8 * 48 / world) * 64, `the fewest inner rows on ${world} ranks`);
      assert.equal(outer, 8 % world === 0, `${world} ranks`);
    }
  });
});
