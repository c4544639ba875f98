/** A small Llama, what it learns, and how it is trained alone or on a part of each batch. @module */
import assert from "node:assert/strict";
import type { ProcessGroup } from "../../../src/comm/process_group.ts";
import type { Device } from "../../../src/device/device.ts";
import { int32 } from "../../../src/dtype.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { initializeParameters } from "../../../src/nn/initialize.ts";
import { AdamW } from "../../../src/optim/adamw.ts";
import { clipGradNorm } from "../../../src/optim/clip.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";

export const CONFIG = {
  model_type: "llama",
  vocab_size: 96,
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
};
const SEQ = 24;

/** Tokens of a step: a text that can be learnt. */
function tokensOf(step: number, batch: number): Int32Array {
  return Int32Array.from({ length: batch * SEQ + 1 }, (_, i) => (step * 31 + i * i + 5 * i) % CONFIG.vocab_size);
}

/** Of each step: this rank's part of the mean loss, and the norm of the gradients. */
export type Steps = readonly (readonly [loss: number, norm: number])[];

/** The settings of a training of a Llama. */
export interface Training {
  readonly steps: number;
  /** Samples of a step, over all ranks. */
  readonly batch: number;
  /** The world whose ranks share the batch; one rank has all of it unless given. */
  readonly group?: ProcessGroup;
  /** Shards or replicates the model, whose gradients are then means over ranks. */
  readonly parallelize?: (model: CausalLm) => void;
  /** Called before each step, after its backward, and before its update. */
  readonly mark?: (place: "step" | "backward" | "update") => void;
}

/** A training under way: its steps are counted from 0. */
export interface OpenTraining extends Disposable {
  readonly model: CausalLm;
  readonly optimizer: AdamW;
  /** Takes a step; the host reads what came of it at its end only. */
  take(step: number): Steps[number];
}

/** Makes the model, its shards or replicas and the optimizer. */
export function openTraining(device: Device, { batch, group, parallelize, mark }: Training): OpenTraining {
  const model = buildModel(device, CONFIG);
  initializeParameters(model, 7);
  parallelize?.(model);
  const optimizer = new AdamW(model.parameters(), { learningRate: 0.01 });
  const { rank, size } = group ?? { rank: 0, size: 1 };
  const own = batch / size;
  const take = (step: number): Steps[number] => {
    using _frame = scope();
    mark?.("step");
    optimizer.zeroGrad();
    const tokens = tokensOf(step % 4, batch).subarray(rank * own * SEQ, (rank + 1) * own * SEQ + 1);
    const shape = [own, SEQ];
    const { loss } = model.call({
      inputIds: tensor(device, tokens.subarray(0, -1), { shape, dtype: int32 }),
      labels: tensor(device, tokens.subarray(1), { shape, dtype: int32 }),
    });
    assert.ok(loss !== undefined);
    const mean = loss.mul(1 / (own * SEQ));
    mean.backward();
    mark?.("backward");
    const norm = clipGradNorm(model.parameters(), 1);
    mark?.("update");
    optimizer.step();
    return [mean.item() / size, norm.item()];
  };
  return { model, optimizer, take, [Symbol.dispose]: () => optimizer.dispose() };
}

/** Trains from the first step on. */
export function train(device: Device, run: Training): Steps {
  using training = openTraining(device, run);
  return Array.from({ length: run.steps }, (_, step) => training.take(step));
}

/** Fails unless losses and norms are equal within what rounding in another order may change. */
export function requireSameSteps(found: Steps, expected: Steps): void {
  assert.equal(found.length, expected.length);
  for (const [step, [loss, norm]] of found.entries()) {
    const [wantLoss, wantNorm] = expected[step] ?? assert.fail();
    const fits = (value: number, want: number): boolean => Math.abs(value - want) <= 2e-4 * Math.abs(want);
    assert.ok(fits(loss, wantLoss), `step ${step}: loss ${loss}, on the CPU ${wantLoss}`);
    assert.ok(fits(norm, wantNorm), `step ${step}: norm ${norm}, on the CPU ${wantNorm}`);
  }
  // The compared run learns: after four steps its loss is below that of a uniform guess over the vocabulary.
  for (const [loss] of expected.slice(4)) assert.ok(loss < Math.log(CONFIG.vocab_size), `loss ${loss}`);
}
