/** The behaviour that PyTorch's own tests of `fully_shard` require, where no other file of this folder tests it. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { allClose } from "../support/allclose.ts";
import { onlyInAll, sharedTest as it } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import {
  countClips,
  type Delay,
  divide,
  freeze,
  passActivations,
  scalar,
  softPrompt,
  trainLate,
  twoLosses,
} from "./semantics_ranks.ts";

describe("fullyShard()", () => {
  const delays: readonly Delay[] = ["after forward", "gather", "reduce-scatter", "exchange", "write", "before step"];
  for (const over of [...["loopback"] as const, ...onlyInAll(["shm"] as const)]) {
    it(`computes the same bits where a rank is late, wherever it is, over ${over}`, { timeout: 120_000 }, async () => {
      const onTime = valuesOf(await world(2, trainLate, { over, data: "nowhere" }));
      for (const data of delays) {
        assert.deepEqual(valuesOf(await world(2, trainLate, { over, data })), onTime, data);
      }
    });
  }

  for (const form of ["array", "object", "nested"] as const) {
    it(`hooks activations that modules give and take in ${form === "nested" ? "nested" : `an ${form}`}`, async () => {
      const [first] = valuesOf(await world(1, passActivations, { data: form }));
      assert.deepEqual(first, {
        calls: [
          ...["gather giver", "gather taker", "gather taker", "reduce-scatter taker"],
          ...["gather giver", "reduce-scatter giver"],
        ],
        same: true,
      });
    });
  }

  it("reduces the trained parameters of a unit alone, and follows what is frozen and trained later", async () => {
    const [trained, frozen] = [3 * 64 + 448, 2 * 448]; // elements, each parameter in whole blocks of 64
    for (const { reduced, grads } of valuesOf(await world(2, freeze))) {
      const weights = ["layers.0.linear.weight", "layers.1.linear.weight"];
      const biases = ["layers.0.linear.bias", "layers.1.linear.bias"];
      const head = ["head.weight", "head.bias"];
      assert.deepEqual(grads.map((list) => list.toSorted()), [
        [...biases, ...head].toSorted(),
        [...weights, ...biases, ...head].toSorted(),
        [...weights, ...head].toSorted(),
      ]);
      assert.deepEqual(reduced, [trained, trained, frozen, trained, frozen]);
    }
  });

  it("takes two losses of one forward as a sum, or one by one where the graph is retained", async () => {
    const [ended] = valuesOf(await world(1, twoLosses));
    assert.ok(ended !== undefined);
    const [plain, retained, added] = ended.grads.map((grads) => Float32Array.from(grads));
    assert.ok(plain !== undefined && retained !== undefined && added !== undefined && plain.length > 0);
    assert.deepEqual(retained, plain);
    allClose(added, plain, { relative: 1e-5, absolute: 1e-5 }, "the sum");
    assert.match(
      ended.refused,
      /UseAfterDisposeError.*add the losses of one forward and run one backward of their sum/,
    );
    const backward = ["gather layers.0", "reduce-scatter layers.0", "reduce-scatter Stack"];
    assert.deepEqual(ended.calls.filter((call) => call !== "gather Stack"), [
      "gather layers.0",
      ...backward,
      ...backward,
    ]);
  });

  for (const ranks of [1, 2]) {
    it(`gives a leaf that is no parameter of it, a soft prompt, its gradient: ${ranks} ranks`, async () => {
      for (const [sharded, plain] of valuesOf(await world(ranks, softPrompt))) {
        assert.ok(sharded?.some((value) => value !== 0));
        assert.deepEqual(sharded, plain);
      }
    });
  }

  it("shards a parameter of no dims: one rank keeps it", async () => {
    const ends = valuesOf(await world(3, scalar));
    assert.deepEqual(ends.map(({ kept }) => kept).sort(), [0, 0, 1]);
    for (const { grad, expected } of ends) assert.equal(grad, expected);
  });

  for (const [ranks, replicas, narrow] of [[2, 1, false], [4, 2, false], [2, 1, true], [1, 1, false]] as const) {
    const what = `${ranks} ranks${replicas > 1 ? ", HSDP" : ""}${narrow ? ", bfloat16" : ""}`;
    it(`divides gradients by the factor, and by the ranks unless one is set: ${what}`, async () => {
      const data: [number, boolean] = [replicas, narrow];
      for (const [unset, bySize, byOne, bySeven] of valuesOf(await world(ranks, divide, { data }))) {
        assert.ok(unset !== undefined && bySize !== undefined && byOne !== undefined && bySeven !== undefined);
        assert.deepEqual(bySize, unset);
        assert.deepEqual(byOne, unset.map((value) => Math.fround(value * ranks)));
        assert.deepEqual(bySeven, byOne.map((value) => Math.fround(value * Math.fround(1 / 7))));
      }
    });
  }
});

describe("clipGradNorm()", () => {
  for (const [type, name] of ["1", "2", "3", "inf"].entries()) {
    it(`combines ${name}-norms over the ranks that shard by one all-reduce, and gives the same bits for any cut`, async () => {
      const norms: number[] = [];
      for (const [ranks, replicas] of [[1, 1], [2, 1], [4, 1], [4, 2]] as const) {
        const data: [number, number] = [replicas, type];
        for (const { count, norm } of valuesOf(await world(ranks, countClips, { data }))) {
          assert.equal(count, 1);
          norms.push(norm);
        }
      }
      assert.ok(Number.isFinite(norms[0]) && new Set(norms).size === 1, `${norms}`);
    });
  }
});
