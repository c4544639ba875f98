/** Accesses that the finder of unordered accesses reports, and accesses that it allows. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Hazards } from "../../src/device/dry/hazards.ts";
import type { StreamName } from "../../src/device/stream.ts";

/** Memory of one block, and short words for what streams do. */
class Bed {
  readonly hazards: Hazards = new Hazards();

  constructor() {
    this.hazards.allocated("compute", 1024, 1024, "weights");
  }

  use(stream: StreamName, verb: "reads" | "writes", address = 1024, byteLength = 1024): void {
    this.hazards.begin(stream);
    const touch = { address, byteLength, writes: verb === "writes", what: "x" };
    this.hazards.touch(stream, `${stream} op`, touch);
  }

  /** Makes one stream come after another. */
  order(after: StreamName, before: StreamName): void {
    this.hazards.wait(after, this.hazards.record(before));
  }
}

const HAZARD = { name: "HazardError" };

describe("Hazards", () => {
  it("lets pass what events order, also by way of a third stream", () => {
    const bed = new Bed();
    bed.use("gather", "writes");
    bed.order("compute", "gather");
    bed.use("compute", "reads");
    bed.order("copy", "compute");
    bed.order("reduce", "copy");
    bed.use("reduce", "writes");
  });

  it("finds a read, a write and an overwrite without an event", () => {
    for (const [first, then] of [["writes", "reads"], ["reads", "writes"], ["writes", "writes"]] as const) {
      const bed = new Bed();
      bed.use("gather", first);
      const message = new RegExp(
        `'compute op' on stream compute ${then} 'x' of 'weights', which 'gather op' on stream gather ${first} as 'x'.*make compute wait`,
      );
      assert.throws(() => bed.use("compute", then), { ...HAZARD, message });
    }
    const bed = new Bed();
    bed.use("gather", "reads");
    bed.use("compute", "reads");
  });

  it("finds an event that was recorded too early", () => {
    const bed = new Bed();
    const early = bed.hazards.record("gather");
    bed.use("gather", "writes");
    bed.hazards.wait("compute", early);
    assert.throws(() => bed.use("compute", "reads"), HAZARD);
  });

  it("compares bytes, not blocks", () => {
    const bed = new Bed();
    bed.use("gather", "writes", 1024, 512);
    bed.use("compute", "writes", 1536, 512);
    assert.throws(() => bed.use("reduce", "reads", 1500, 8), HAZARD);
  });

  it("finds uses after a free, and of memory that was never given out", () => {
    const bed = new Bed();
    assert.throws(() => bed.use("compute", "reads", 2000, 100), {
      ...HAZARD,
      message: /memory that was never given out/,
    });
    const other = new Bed();
    other.hazards.freed("compute", 1024);
    assert.throws(() => other.use("compute", "reads"), { ...HAZARD, message: /memory that was freed \('weights'\)/ });
  });

  it("finds a free before the consumer's event", () => {
    const bed = new Bed();
    bed.use("gather", "reads");
    const message = /'weights' is freed on stream compute while 'gather op' on stream gather reads it as 'x'/;
    assert.throws(() => bed.hazards.freed("compute", 1024), { ...HAZARD, message });
    const ordered = new Bed();
    ordered.use("gather", "reads");
    ordered.order("compute", "gather");
    ordered.hazards.freed("compute", 1024);
  });

  it("lets what follows the first hazard be, so that cleaning up does not hide it", () => {
    const bed = new Bed();
    bed.use("gather", "writes");
    assert.throws(() => bed.use("compute", "reads"), HAZARD);
    bed.use("compute", "writes");
    bed.hazards.freed("compute", 1024);
    assert.throws(() => bed.hazards.freed("compute", 1024), { name: "InternalError" });
  });

  it("orders memory that is given out again after its last use", () => {
    const bed = new Bed();
    bed.use("compute", "writes");
    bed.hazards.freed("compute", 1024);
    bed.hazards.allocated("gather", 1280, 256, "other");
    bed.use("gather", "writes", 1280, 256);
    assert.throws(() => bed.use("gather", "reads", 1024, 256), { ...HAZARD, message: /was freed/ });
  });

  it("forgets what a later write stands for, so that long runs stay short", () => {
    const bed = new Bed();
    for (let i = 0; i < 10_000; i++) {
      bed.use("compute", "reads", 1024 + i % 4 * 256, 256);
      if (i % 100 === 0) bed.use("compute", "writes");
    }
  });
});
