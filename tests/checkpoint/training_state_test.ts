/** The values that a trainer may keep in a checkpoint: those that JSON restores unchanged. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as fs from "node:fs";
import { launch, openModel } from "../../mod.ts";
import {
  asyncSave,
  type AsyncSaveOptions,
  CheckpointStager,
  loadCheckpoint,
  saveCheckpoint,
} from "../../doors/checkpoint.ts";
import { ArgumentError } from "../../doors/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** Nested objects, of this depth. */
function nested(depth: number): Record<string, unknown> {
  return depth === 1 ? {} : { in: nested(depth - 1) };
}

test("saveCheckpoint() and asyncSave() refuse a state of which JSON keeps something else", async () => {
  using folder = temporaryDirectory();
  await using run = await launch();
  const sizes = { vocab_size: 16, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 };
  const model = await openModel(run, { model_type: "llama", ...sizes });
  await model.load();
  using stager = new CheckpointStager(run.device);
  const where = { directory: folder.file("out"), model, group: run.group };
  const what = { ...where, step: 1 };
  const saves = [
    saveCheckpoint,
    async (options: Omit<AsyncSaveOptions, "stager">) => await asyncSave({ ...options, stager }),
  ];

  const circle: Record<string, unknown> = {};
  circle["again"] = circle;
  for (
    const [state, said] of [
      [{ best: { loss: Infinity } }, /^state\.best\.loss must be .* a finite number.* got Infinity$/],
      [{ losses: [1, NaN] }, /^state\.losses\.1 must be .* got NaN$/],
      [{ losses: [undefined] }, /^state\.losses\.0 must be .* got undefined$/],
      [{ tokens: 5n }, /^state\.tokens must be .* got 5$/],
      [{ seen: new Map([["a", 1]]) }, /^state\.seen must be .* got an instance of a class$/],
      [{ at: new Date(0) }, /^state\.at must be .* got an instance of a class$/],
      [{ next: () => 1 }, /^state\.next must be .* got a function$/],
      [circle, /^state\.again.* is nested too deep, or lies in itself$/],
      [nested(48), /^state\.in.* is nested too deep, or lies in itself$/],
    ] as const
  ) {
    for (const save of saves) {
      await assert.rejects(
        save({ ...what, state }),
        (error) => error instanceof ArgumentError && said.test(error.message),
      );
    }
    assert.deepEqual(fs.readdirSync(what.directory), []);
  }

  const kept = {
    deep: nested(46),
    list: [null, true, "a", -1.5, [2 ** 53]],
    bare: Object.assign(Object.create(null), { x: 1 }),
  };
  for (const save of saves) {
    await save({ ...what, state: { ...kept, none: undefined } });
    const loaded = await loadCheckpoint(where);
    assert.equal(JSON.stringify(loaded?.state), JSON.stringify(kept));
  }
});
