/** Waits that a peer fulfils and aborts in the same moment. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ABORT_WORDS, AbortArea } from "../../src/comm/control/abort.ts";
import { BLOCK_BYTES, SharedControlPlane } from "../../src/comm/control/shared.ts";
import { placeInWorld } from "../../src/comm/control_plane.ts";
import { CollectiveError } from "../../src/errors.ts";

/** Rank 0 of two in one process, which never sleeps, and the abort area of the world. */
class LonePlane extends SharedControlPlane {
  constructor(abort: AbortArea) {
    const blocks = [0, 1].map(() => new Uint8Array(new SharedArrayBuffer(BLOCK_BYTES)));
    const block = (rank: number): Uint8Array => blocks[rank] ?? assert.fail();
    const memory = { block, sleep: () => {}, wake: () => {}, leave: () => {} };
    super(placeInWorld(0, 2), memory, { abort, deathOf: () => undefined, options: {}, spins: 0 });
  }

  split(): never {
    throw new Error("not split");
  }
}

test("a wait returns if its peer contributed before it aborted, wherever the waiting rank was off its core", () => {
  for (const late of [1, 2, 3, 4]) {
    const abort = new AbortArea(new Int32Array(new SharedArrayBuffer(ABORT_WORDS * 4)));
    let checks = 0;
    let isContributed = false;
    new LonePlane(abort).wait(
      () => {
        const seen = isContributed;
        checks++;
        // Between this check and the rank's next one, the peer contributes and then stops all ranks.
        if (checks === late) {
          isContributed = true;
          abort.set(1, "seed: expected the same on all ranks");
        }
        return seen;
      },
      "its contribution",
      1,
    );
    assert.equal(checks, late + 1);
  }
});

test("a wait fails if its peer aborted without contributing", () => {
  const abort = new AbortArea(new Int32Array(new SharedArrayBuffer(ABORT_WORDS * 4)));
  abort.set(1, "out of memory");
  const wait = () => new LonePlane(abort).wait(() => false, "its contribution", 1);
  assert.throws(
    wait,
    (error) => error instanceof CollectiveError && /rank 1 stopped all ranks: out of memory/.test(error.message),
  );
});
