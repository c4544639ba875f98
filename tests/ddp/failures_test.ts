/** Steps of replicated modules whose memory runs out: nothing is kept, and the next step has the same gradients. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { bfloat16, replicate, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { gradients, input, Stack } from "../fsdp/modules.ts";
import { openRank } from "../fsdp/run.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";

const WIDTH = 20;

describe("a step of a replicated module whose memory runs out", () => {
  for (
    const [name, precision] of [
      ["float32", {}],
      ["bfloat16", { paramDtype: bfloat16, reduceDtype: bfloat16 }],
    ] as const
  ) {
    it(`leaves no bucket behind, ${name}`, async () => {
      const { device, group } = await openRank();
      const model = new Stack(device, WIDTH, 2);
      initializeParameters(model, 5);
      const replicated = replicate(model, { mesh: group, bucketBytes: 4000, precision });
      const step = (): void => {
        for (const sync of [false, true]) {
          using _frame = scope();
          replicated.setRequiresGradientSync(sync);
          model.call(input(device, `x ${sync}`, 3, WIDTH)).sum().backward();
        }
      };
      const clear = (): void => [...model.parameters()].forEach((parameter) => parameter.zeroGrad());
      step();
      const expected = gradients(model.parameters());
      clear();
      const idle = device.allocator.stats.inUse;
      let place = 0;
      for (;; place++) {
        const failing = failAllocation([device.allocator], place);
        const error = messageOf(step);
        failing[Symbol.dispose]();
        if (error === "") break;
        clear();
        assert.equal(device.allocator.stats.inUse, idle, error);
        step();
        assert.deepEqual(gradients(model.parameters()), expected, error);
        clear();
      }
      assert.ok(place > 20, `${place} failures`);
    });
  }
});
