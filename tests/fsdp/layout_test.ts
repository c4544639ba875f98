/** The planner of flat segments, on random sizes and on those of real models. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import { planSegment, type SegmentPlan, shardLayoutOf } from "../../src/fsdp/layout.ts";
import { elementSlices, fullLayout, rangeLayout, sharedSlices } from "../../src/tensor/shard_layout.ts";

type Shape = readonly number[];

const numelOf = (shape: Shape): number => shape.reduce((n, size) => n * size, 1);

/** One Llama block: q, k, v, o, gate, up, down, norms. */
function block(hidden: number, intermediate: number, kv: number): number[] {
  const [h, f] = [hidden, intermediate];
  return [[h, h], [kv, h], [kv, h], [h, h], [f, h], [f, h], [h, f], [h], [h]].map(numelOf);
}

/** Checks all that must hold of a plan whatever the sizes. */
function check(plan: SegmentPlan, sizes: readonly number[], world: number, width: number): void {
  const aligned = 256 / width;
  assert.equal(plan.numShards, world);
  assert.equal(plan.shardLength % aligned, 0);
  let end = 0;
  for (const [i, numel] of sizes.entries()) {
    const offset = plan.offsets[i] ?? NaN;
    assert.equal(offset % aligned, 0, `parameter ${i} starts at ${offset}`);
    assert.ok(offset >= end, `parameter ${i} overlaps the one before it`);
    end = offset + numel;
    let next = 0;
    for (let rank = 0; rank < world; rank++) {
      const shard = shardLayoutOf(plan, offset, [numel], rank);
      assert.ok(shard.numel >= 0 && shard.offset >= 0 && shard.offset + shard.numel <= plan.shardLength);
      if (shard.numel === 0) continue;
      const [slice] = elementSlices(shard);
      assert.deepEqual(
        slice,
        { offset: next, length: shard.numel, local: 0 },
        `rank ${rank} of parameter ${i} goes on`,
      );
      const place = rank * plan.shardLength + shard.offset;
      assert.equal(place, offset + next, "the slice lies where the parameter does");
      assert.equal(next % aligned, 0, "cuts fall on blocks of the parameter");
      next += shard.numel;
    }
    assert.equal(next, numel, `all of parameter ${i} is owned`);
  }
  assert.ok(end <= plan.shardLength * world);
  const numel = sizes.reduce((sum, size) => sum + size, 0);
  assert.equal(plan.padding, plan.shardLength * world - numel);
  assert.ok(plan.padding < aligned * (sizes.length + world), `${plan.padding} padding of ${sizes.length} parameters`);
}

describe("planSegment()", () => {
  it("owns every element once, cuts at blocks and pads less than a block a parameter and one a rank", () => {
    const key = keyOf(3, "layout");
    let draws = 0;
    const draw = (limit: number): number => uniformInt(key, draws++, limit);
    for (let i = 0; i < 300; i++) {
      const some = [0, 1, 2, 3, 7, 63, 64, 65, 128, 257, 4099, 66_049];
      const sizes = Array.from({ length: 1 + draw(6) }, () => some[draw(some.length)] ?? 1);
      const world = 1 + draw(40);
      const width = [4, 2][draw(2)] ?? 4;
      const plan = planSegment(sizes, world, width);
      check(plan, sizes, world, width);
      assert.deepEqual(planSegment(sizes, world, width), plan, "a pure function");
    }
  });

  it("pads units of real models by less than 0.1 %", () => {
    const units: readonly (readonly [name: string, sizes: readonly number[], most: number])[] = [
      ["Llama-3-8B block", block(4096, 14336, 1024), 1024],
      ["Llama-3-8B ends", [128_256 * 4096, 4096, 128_256 * 4096], 1024],
      ["GLM4-9B block", block(4096, 13696, 256), 256],
    ];
    for (const [name, sizes, most] of units) {
      for (let world = 1; world <= most; world = world < 16 ? world + 1 : world * 2) {
        for (const width of [4, 2]) {
          const plan = planSegment(sizes, world, width);
          check(plan, sizes, world, width);
          const share = plan.padding / sizes.reduce((sum, size) => sum + size, 0);
          assert.ok(share < 0.001, `${name} on ${world} ranks: ${share}`);
        }
      }
    }
  });

  it("does not blow up on odd last dims", () => {
    const sizes = [257 * 257, 257];
    for (let world = 1; world <= 4096; world *= 2) check(planSegment(sizes, world, 4), sizes, world, 4);
  });
});

describe("rangeLayout()", () => {
  it("covers any range by at most 2·ndim - 1 boxes, which lie one after another", () => {
    for (const shape of [[], [5], [4, 6], [3, 1, 4], [2, 3, 4, 5]]) {
      const numel = numelOf(shape);
      for (let offset = 0; offset < numel; offset++) {
        for (let length = 0; offset + length <= numel; length++) {
          const layout = rangeLayout(shape, offset, length);
          assert.ok(layout.boxes.length <= Math.max(1, 2 * shape.length - 1));
          assert.equal(layout.boxes.reduce((sum, { sizes }) => sum + numelOf(sizes), 0), length);
          const whole = { offsets: shape.map(() => 0), sizes: shape };
          const slices = layout.boxes.flatMap((box) => sharedSlices(box, whole));
          assert.equal(slices.length, layout.boxes.length, "each box of a range is contiguous");
          assert.deepEqual(elementSlices(layout), length === 0 ? [] : [{ offset, length, local: 0 }]);
        }
      }
    }
  });

  it("elementSlices() walks boxes that are not contiguous, too", () => {
    const columns = { shape: [3, 6], boxes: [{ offsets: [1, 2], sizes: [2, 3] }] };
    assert.deepEqual(elementSlices(columns), [{ offset: 8, length: 3, local: 0 }, { offset: 14, length: 3, local: 3 }]);
    assert.deepEqual(elementSlices(fullLayout([2, 3])), [{ offset: 0, length: 6, local: 0 }]);
    assert.deepEqual(elementSlices(fullLayout([])), [{ offset: 0, length: 1, local: 0 }]);
    assert.deepEqual(elementSlices(fullLayout([0, 3])), []);
  });

  it("sharedSlices() gives the elements of two boxes, wherever they lie", () => {
    const key = keyOf(4, "boxes");
    let draws = 0;
    const draw = (limit: number): number => uniformInt(key, draws++, limit);
    for (let i = 0; i < 500; i++) {
      const shape = Array.from({ length: draw(4) }, () => 1 + draw(5));
      const box = (): { offsets: number[]; sizes: number[] } => {
        const offsets = shape.map((size) => draw(size));
        return { offsets, sizes: shape.map((size, dim) => 1 + draw(size - (offsets[dim] ?? 0))) };
      };
      const [first, second] = [box(), box()];
      const listOf = ({ offsets, sizes }: ReturnType<typeof box>): string[] =>
        Array.from({ length: numelOf(sizes) }, (_, place) => {
          let rest = place;
          const index = sizes.toReversed().map((size) => {
            const at = rest % size;
            rest = Math.floor(rest / size);
            return at;
          }).reverse();
          return index.map((at, dim) => at + (offsets[dim] ?? 0)).join();
        });
      const [inFirst, inSecond] = [listOf(first), listOf(second)];
      const shared = sharedSlices(first, second).flatMap(({ inFirst: a, inSecond: b, length }) =>
        Array.from({ length }, (_, step) => [inFirst[a + step], inSecond[b + step]])
      );
      assert.ok(shared.every(([a, b]) => a !== undefined && a === b));
      assert.deepEqual(shared.map(([a]) => a), inFirst.filter((index) => inSecond.includes(index)));
    }
  });
});
