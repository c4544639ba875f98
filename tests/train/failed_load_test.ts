/** Loads and initializations that throw in the middle: nobody computes with a part of the values. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { loadCheckpoint, saveCheckpoint, setModelStateDict } from "../../doors/checkpoint.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { bfloat16, fullyShard, int32, replicate, scope, tensor } from "../../mod.ts";
import { getModelStateDict } from "../../src/checkpoint/state_dict/model_state.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { openModel } from "../../src/train/open_model.ts";
import { openRank } from "../fsdp/run.ts";
import type { Rank } from "../fsdp/scenarios.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { SIZES } from "./loop_ranks.ts";

/** Makes the copy to the device of that number throw; gives what ends that. */
function failCopy({ device }: Rank, place: number): () => void {
  const copyIn = device.copyIn.bind(device);
  let count = 0;
  Object.defineProperty(device, "copyIn", {
    configurable: true,
    value: (...args: Parameters<typeof copyIn>) => {
      if (count++ === place) throw new Error("injected");
      copyIn(...args);
    },
  });
  return () => void Reflect.deleteProperty(device, "copyIn");
}

const MODES = {
  plain: () => {},
  sharded: (model: CausalLm, { group }: Rank) => void fullyShard(model, { mesh: group }),
  "replicated in bfloat16": (model: CausalLm, { group }: Rank) =>
    void replicate(model, { mesh: group, precision: { paramDtype: bfloat16 } }),
} as const;

function forward(model: CausalLm, { device }: Rank): number {
  using _frame = scope();
  const inputIds = tensor(device, [1, 2, 3, 4], { shape: [1, 4], dtype: int32 });
  return model.call({ inputIds, labels: inputIds }).loss?.item() ?? NaN;
}

for (const [mode, parallelize] of Object.entries(MODES)) {
  describe(`a ${mode} model`, () => {
    it("has no values after a load that threw in the middle, and those of the next one", async () => {
      using temporary = temporaryDirectory();
      const rank = await openRank();
      const saved = await openModel(rank, SIZES, { seed: 3 });
      await saved.load();
      const [folder, checkpoint] = [`${temporary.path}/model`, `${temporary.path}/checkpoints`];
      await saved.save(folder);
      await saveCheckpoint({ directory: checkpoint, step: 1, model: saved, group: rank.group, state: {} });
      const state = getModelStateDict(saved);
      const expected = forward(saved, rank);
      const model = await openModel(rank, folder);
      parallelize(model, rank);
      const loads = {
        "a folder": () => model.load(),
        "a folder, by rank 0": () => model.load({ broadcastFromRank0: true }),
        "a checkpoint": () => loadCheckpoint({ directory: checkpoint, model, group: rank.group }),
        "a state dict": async () => void await Promise.resolve(setModelStateDict(model, state, { group: rank.group })),
      };
      for (const [what, load] of Object.entries(loads)) {
        const inUse = rank.device.allocator.stats.inUse;
        const end = failCopy(rank, 5);
        await assert.rejects(async () => void await load(), /injected/, what);
        end();
        assert.equal(rank.device.allocator.stats.inUse, inUse, what);
        assert.throws(() => forward(model, rank), /has no values|has no memory: it has no values/, what);
        await load();
        const loss = forward(model, rank);
        assert.ok(mode.includes("bfloat16") ? Math.abs(loss - expected) < 0.05 : loss === expected, `${what}: ${loss}`);
        for (const parameter of model.parameters()) parameter.storage.vacate();
      }
    });

    if (mode === "sharded") return; // its memory was opened with it
    it("has no values after an initialization whose memory ran out", async () => {
      const rank = await openRank();
      const model = await openModel(rank, SIZES, { seed: 3 });
      parallelize(model, rank);
      const inUse = rank.device.allocator.stats.inUse;
      using failing = failAllocation([rank.device.allocator], 7);
      assert.throws(() => initializeParameters(model, 1), /injected/);
      assert.ok(failing.count > 7);
      assert.equal(rank.device.allocator.stats.inUse, inUse);
      assert.throws(() => forward(model, rank), /has no values|has no memory: it has no values/);
    });
  });
}
