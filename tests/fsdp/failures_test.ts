/**
 * Calls that fail in the middle of a gather or a write: what a unit does next is not changed by them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fullyShard, scope, tensor } from "../../mod.ts";
import { initializeParameters, Linear, writeParameters } from "../../doors/nn.ts";
import { ProcessGroup } from "../../doors/comm.ts";
import { openRank } from "./run.ts";

describe("fullyShard()", () => {
  it("gathers again after a gather that failed", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    let failures = 1;
    class FailingGroup extends ProcessGroup {
      override openWindow(...args: Parameters<ProcessGroup["openWindow"]>): ReturnType<ProcessGroup["openWindow"]> {
        const window = group.openWindow(...args);
        return {
          pointer: window.pointer,
          byteLengths: window.byteLengths,
          beginWrite: (...write) => window.beginWrite(...write),
          endWrite: () => window.endWrite(),
          gather: (...gather) => {
            if (failures-- > 0) throw new Error("the gather failed");
            return window.gather(...gather);
          },
          dispose: () => window.dispose(),
        };
      }
    }
    const failing: ProcessGroup = Object.create(group, {
      openWindow: { value: FailingGroup.prototype.openWindow },
      size: { value: group.size },
      rank: { value: group.rank },
      reduceScatter: { value: group.reduceScatter.bind(group) },
      agree: { value: group.agree.bind(group) },
      gatherMemory: { value: group.gatherMemory.bind(group) },
    });
    const model = new Linear(device, 2, 2);
    const sharded = fullyShard(model, { mesh: failing });
    initializeParameters(model, 0);
    const x = tensor(device, [1, 2], { shape: [1, 2] });
    assert.throws(() => model.call(x), /the gather failed/);
    assert.equal(model.call(x).numel, 2);
    sharded.dispose();
    sharded.dispose();
  });

  it("ends its write when a callback fails", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    const model = new Linear(device, 2, 2);
    fullyShard(model, { mesh: group });
    assert.throws(() =>
      writeParameters(model.parameters(), () => {
        throw new Error("no");
      }), /no/);
    initializeParameters(model, 0);
    assert.equal(model.call(tensor(device, [1, 2], { shape: [1, 2] })).numel, 2);
  });
});
