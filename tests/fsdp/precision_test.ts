/** Units in bfloat16 and float16: what moves, what stays float32, and how near the trainings are. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe } from "node:test";
import { bfloat16, type DType, float16, float32, fullyShard, scope, SGD } from "../../mod.ts";
import { initializeParameters, ownedPtr } from "../../doors/nn.ts";
import { byteLengthOf } from "../../src/comm/call.ts";
import { type Distance, meanOf } from "../../scripts/parity/distance.ts";
import { distancesOf, nameOf, NARROW, STEPS, trainOurs } from "../../scripts/parity/precisions.ts";
import type { ParityCase } from "../../scripts/parity/traces.ts";
import { trainAlike } from "../support/parity.ts";
import type { TrainingCase } from "../../scripts/parity/training.ts";
import { longTest, sharedTest as it } from "../support/share.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

/** The distance of PyTorch's trainings from float32: see `scripts/parity/precision.ts`. */
const PYTORCH: {
  readonly steps: number;
  readonly distances: Readonly<Record<string, { readonly furthest: Distance; readonly mean: Distance }>>;
} = JSON.parse(readFileSync(new URL("../fixtures/precision.json", import.meta.url), "utf8"));

function caseOf(ranks: number, part: Partial<TrainingCase>): ParityCase {
  const training: TrainingCase = { mode: "fsdp-reshard", tied: true, microBatches: 2, steps: 4, ...part };
  return { name: `${ranks} ranks`, ranks, training };
}

describe("fullyShard() with mixed precision", () => {
  longTest("leads from float32 no further than PyTorch's does on the same weights and data", async () => {
    assert.equal(STEPS, PYTORCH.steps);
    const ours = [distancesOf(await trainOurs(1, "wasm")), distancesOf(await trainOurs(2, "wasm"))];
    assert.deepEqual(Object.keys(ours[0] ?? {}), Object.keys(PYTORCH.distances));
    for (const [precision, { furthest }] of Object.entries(PYTORCH.distances)) {
      const mean = meanOf(ours.flatMap((distances) => distances[precision] ?? []));
      for (const key of ["loss", "gradNorm", "weights"] as const) {
        assert.ok(mean[key] > 0, `${precision}: it is another precision`);
        assert.ok(mean[key] <= furthest[key], `${precision}: ${key} by ${mean[key]}, PyTorch's by ${furthest[key]}`);
      }
    }
  });

  for (const precision of NARROW) {
    it(`gives the same bits in ${nameOf(precision)} whether parameters are kept or not`, async () => {
      await trainAlike([caseOf(2, { precision }), caseOf(2, { precision, mode: "fsdp-keep" })]);
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
