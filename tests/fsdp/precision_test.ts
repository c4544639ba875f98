/** Units in bfloat16 and float16: what moves, what stays float32, and how near the losses are. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { bfloat16, type DType, float16, float32, fullyShard, scope, SGD } from "../../mod.ts";
import { initializeParameters, ownedPtr } from "../../doors/nn.ts";
import { byteLengthOf } from "../../src/comm/call.ts";
import { compare, type ParityCase, runCases } from "../../scripts/parity/traces.ts";
import { assertSameBits, trainAlike } from "../support/parity.ts";
import type { TrainingCase } from "../../scripts/parity/training.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

const STEPS = 4;
/** What is computed in, and reduced in. */
const NARROW = [
  ["bfloat16", "float32"],
  ["bfloat16", "bfloat16"],
  ["float16", "float32"],
  ["float16", "float16"],
] as const;

function caseOf(ranks: number, part: Partial<TrainingCase>): ParityCase {
  const training: TrainingCase = { mode: "fsdp-reshard", tied: true, microBatches: 2, steps: STEPS, ...part };
  return { name: `${ranks} ranks`, ranks, training };
}

describe("fullyShard() with mixed precision", () => {
  for (const [paramDtype, reduceDtype] of NARROW) {
    it(`computes in ${paramDtype} near float32, reducing in ${reduceDtype}`, async () => {
      const precision = { paramDtype, reduceDtype };
      const cases = [caseOf(2, {}), caseOf(2, { precision }), caseOf(2, { precision, mode: "fsdp-keep" })];
      const [wide, reshard, keep] = await runCases(cases, "wasm");
      assert.ok(wide !== undefined && reshard !== undefined && keep !== undefined);
      assertSameBits(reshard, keep);
      assert.ok(compare(wide, reshard).max_ulp_loss > 0, "it is another precision");
      for (const [i, loss] of wide.losses.entries()) {
        const other = reshard.losses[i] ?? NaN;
        assert.ok(Math.abs(other - loss) < 0.02 * loss, `step ${i}: ${other} is not near ${loss}`);
        const norm = wide.gradNorms[i] ?? NaN;
        assert.ok(Math.abs((reshard.gradNorms[i] ?? NaN) - norm) < 0.1 * norm, `norm of step ${i}`);
      }
    });
  }

  for (const paramDtype of ["bfloat16", "float16"]) {
    it(`gives the same bits in ${paramDtype} on 2 ranks as replicated, and as on one that accumulates`, async () => {
      const precision = { paramDtype, reduceDtype: "float32" };
      await trainAlike([caseOf(2, { precision }), caseOf(2, { precision, mode: "ddp" }), caseOf(1, { precision })]);
    });
  }

  const cases: readonly (readonly [paramDtype: DType, reduceDtype: DType])[] = [
    [bfloat16, float32],
    [bfloat16, bfloat16],
    [float32, bfloat16],
    [float16, float32],
    [float16, float16],
  ];
  for (const [paramDtype, reduceDtype] of cases) {
    it(`moves parameters as ${paramDtype.name} and gradients as ${reduceDtype.name}, and keeps float32 masters`, async () => {
      const { device, group, calls } = await openRank();
      const model = new Stack(device, WIDTH, 2);
      const sharded = fullyShard(model, { mesh: group, precision: { paramDtype, reduceDtype } });
      initializeParameters(model, 5);
      const [segment] = sharded.unit.segments;
      assert.ok(segment !== undefined);
      const optimizer = new SGD(model.parameters(), { learningRate: 0.5 });
      const losses: number[] = [];
      for (let step = 0; step < 8; step++) {
        using _frame = scope();
        calls.length = 0;
        optimizer.zeroGrad();
        const x = input(device, "x", 4, WIDTH);
        const out = model.call(x.to(paramDtype));
        assert.equal(out.dtype, paramDtype);
        const loss = out.mul(out).mean();
        loss.backward();
        losses.push(loss.item());
        assert.ok(
          [...model.parameters()].every(({ grad }) => grad?.dtype === float32),
          "reduced gradients are float32",
        );
        optimizer.step();
        const bytes = (kind: string): number[] => calls.filter((call) => call.kind === kind).map(byteLengthOf);
        assert.deepEqual(bytes("gather"), [segment.length * paramDtype.byteLength]);
        assert.deepEqual(bytes("reduce-scatter"), [segment.length * reduceDtype.byteLength]);
      }
      assert.ok((losses.at(-1) ?? NaN) < 0.9 * (losses[0] ?? NaN), `${losses}`);
      const master = new Float32Array(WIDTH);
      device.copyOut(new Uint8Array(master.buffer), ownedPtr(model.head.weight));
      const halves = new Uint32Array(master.buffer).some((bits) => (bits & 0xffff) !== 0);
      assert.ok(halves, "masters hold more than 16 bits can");
      sharded.unshard();
      const seen = model.head.weight.toArray().subarray(0, WIDTH);
      master.forEach((value, i) =>
        assert.ok(Math.abs((seen[i] ?? NaN) - value) <= (paramDtype === float32 ? 0 : Math.abs(value) / 256))
      );
      sharded.reshard();
      assert.equal(sharded.unit.unsharded, false);
    });
  }
});
