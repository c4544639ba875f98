/** Cuts of parameters over axes: which elements are whose, against counting; what is refused, and that nothing changes then. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { chunkRange, globalLayout, largestPart, lengthsOf, partShape, type Placement } from "../../src/tensor/cut.ts";
import { elementSlices, fullLayout, rangeLayout } from "../../src/tensor/shard_layout.ts";
import { valuesOf, world } from "../support/world.ts";
import { cutTwice, refuseCuts, shardWithoutMemory, wholeWeight } from "./cut_ranks.ts";

const normReducer = { allReduce: () => assert.fail("no norms here") };

function placement(dim: number, packs: number, rank: number, size: number): Placement {
  return { dim, packs, axis: { name: "tensor", rank, size, worldRanks: [], normReducer } };
}

/** Places of a rank's elements in the row-major whole, by cutting lists of places. */
function placesOf(shape: readonly number[], placements: readonly Placement[]): readonly number[] {
  let [sizes, places] = [[...shape], Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => i)];
  for (const { dim, packs, axis: { rank, size } } of placements) {
    const length = sizes[dim] ?? assert.fail();
    const inner = sizes.slice(dim + 1).reduce((a, b) => a * b, 1);
    const chunk = Math.ceil(length / packs / size);
    places = places.filter((_, i) => Math.floor(Math.floor(i / inner) % length % (length / packs) / chunk) === rank);
    const { length: left } = Array.from({ length: length / packs }).filter((_, i) => Math.floor(i / chunk) === rank);
    sizes = sizes.with(dim, left * packs);
  }
  return places;
}

test("globalLayout() gives the places of a part in the whole, of any range of it", () => {
  for (const shape of [[6], [8, 3], [3, 8], [2, 6, 5], [4, 3, 6]]) {
    for (let dim = 0; dim < shape.length; dim++) {
      for (const packs of [1, 2, 3]) {
        if ((shape[dim] ?? NaN) % packs !== 0) continue;
        for (const size of [1, 2, 3]) {
          for (let rank = 0; rank < size; rank++) {
            const cuts = [placement(dim, packs, rank, size)];
            const part = cuts.reduce<readonly number[]>((sizes, one) => partShape(sizes, one), shape);
            const places = placesOf(shape, cuts);
            assert.equal(places.length, part.reduce((a, b) => a * b, 1));
            for (let begin = 0; begin < places.length; begin += 2) {
              for (const length of [1, 3, places.length - begin]) {
                if (begin + length > places.length) continue;
                const whole = globalLayout(shape, cuts, rangeLayout(part, begin, length));
                const found = elementSlices(whole).flatMap(({ offset, length: run, local }) =>
                  Array.from({ length: run }, (_, i) => [local + i, offset + i] as const)
                ).sort(([a], [b]) => a - b).map(([, place]) => place);
                assert.deepEqual(
                  found,
                  places.slice(begin, begin + length),
                  `${shape} ${dim} ${packs} ${rank}/${size}`,
                );
                assert.deepEqual(whole.shape, shape);
              }
            }
          }
        }
      }
    }
  }
});

test("globalLayout() of several cuts gives what the last one has left", () => {
  const shape = [7, 10];
  for (const [first, second] of [[0, 1], [1, 0], [0, 0]] as const) {
    for (const rank of [0, 1]) {
      for (const other of [0, 1]) {
        const cuts = [placement(first, 1, rank, 2), placement(second, 1, other, 2)];
        const part = cuts.reduce<readonly number[]>((sizes, one) => partShape(sizes, one), shape);
        const whole = globalLayout(shape, cuts, fullLayout(part));
        const found = elementSlices(whole).flatMap(({ offset, length }) =>
          Array.from({ length }, (_, i) => offset + i)
        );
        assert.deepEqual(found, placesOf(shape, cuts));
        assert.equal(largestPart(shape, cuts), first === second ? 2 * 10 : 4 * 5);
      }
    }
  }
});

test("chunkRange() cuts as torch.chunk does, and lengthsOf() gives all lengths", () => {
  assert.deepEqual([0, 1, 2, 3].map((rank) => chunkRange(5, rank, 4)), [
    { begin: 0, length: 2 },
    { begin: 2, length: 2 },
    { begin: 4, length: 1 },
    { begin: 5, length: 0 },
  ]);
  assert.deepEqual(lengthsOf([9, 4], [placement(0, 1, 0, 2)], 0), [5, 4]);
  assert.deepEqual(lengthsOf([9, 4], [placement(0, 1, 0, 2), placement(0, 1, 0, 2)], 0), [3, 2]);
  assert.deepEqual(lengthsOf([9, 4], [placement(0, 1, 0, 2)], 1), [4]);
});

test("cutParameters() refuses what cannot be cut on all ranks alike, and changes nothing then", async () => {
  const patterns: Readonly<Record<string, RegExp>> = {
    "two axes": /Cannot cut over the axes shard × tensor: give one, by mesh\.get or mesh\.flatten/,
    "no such dim": /Cannot cut 'parameter' \[6, 5\] by dim 2 over axis 'tensor' of 2 ranks: give a dim from 0 to 1/,
    "packs that do not divide": /\[6, 5\] by dim 0 .*: 6 is no multiple of 4 packs/,
    "nothing for the last ranks": /\[6, 5\] by dim 1 over axis 'all' of 4 ranks: its last ranks would have nothing/,
    "other rules": /Ranks must cut the same parameters in the same order: rank \d gave 'parameter' \[6, 5\] by dim \d/,
    "wrong on one rank": /by dim 5 over axis 'tensor'|^$/,
    "values": /: it has values; cut it before it is initialized or loaded/,
    "sharded": /Cannot cut '\w+': it is sharded already/,
    "the same axis twice": /: it is cut over axis 'tensor' already, which has some of these ranks too/,
    "shards over the axis":
      /Cannot shard '\w+' over ranks 0, 1, 2, 3: it is cut over axis 'tensor' of ranks \d, \d; give/,
    "copies over the axis": /Cannot replicate '\w+' over ranks 0, 1, 2, 3: it is cut over axis 'tensor'/,
    "uneven chunks of a dim": /Cannot shard '\w+' \[6, [23]\] along dim 1 over 2 ranks/,
  };
  for (const [rank, found] of valuesOf(await world(4, refuseCuts)).entries()) {
    assert.deepEqual(found.map(([name]) => name), Object.keys(patterns));
    for (const [name, text] of found) {
      const [error = "", shapes] = text.split(" | ");
      if (name === "wrong on one rank") {
        // The axis of ranks 2 and 3 has nothing wrong.
        assert.equal(error === "", rank > 1, error);
        assert.equal(shapes, rank > 1 ? "[3,5] [4,4]" : "[6,5] [4,4]");
        continue;
      }
      assert.match(error, patterns[name] ?? /^$/, name);
      if (name !== "uneven chunks of a dim") assert.equal(shapes, "[6,5] [4,4]", name);
    }
  }
});

for (const dims of [[0, 1], [1, 0], [0, 0], [1, 1]] as const) {
  test(`parameters that two axes cut, by dims ${dims}, under FSDP begin as on one rank`, async () => {
    const [whole = []] = valuesOf(await world(1, wholeWeight));
    const seen: number[] = [];
    for (const { values, boxes } of valuesOf(await world(8, cutTwice, { data: dims }))) {
      assert.ok(Array.isArray(boxes));
      const layout = { shape: [6, 10], boxes, numel: values.length };
      for (const { offset, length, local } of elementSlices(layout)) {
        assert.deepEqual(values.slice(local, local + length), whole.slice(offset, offset + length));
        for (let i = 0; i < length; i++) seen.push(offset + i);
      }
    }
    assert.deepEqual(seen.sort((a, b) => a - b), Array.from({ length: 60 }, (_, i) => i));
  });
}

test("fullyShard() of a cut parameter that finds no memory leaves it cut and plain", async () => {
  for (const found of valuesOf(await world(4, shardWithoutMemory))) {
    assert.equal(found.length, 2, found.join());
    assert.match(found[0] ?? "", /Cannot cut '\w+': it is sharded already/);
    assert.equal(found[1], "3,10 of 6,10");
  }
});
