/** A Worker that plays one rank of `gate_test.ts`: the last rank meets an id out of range in the second step. @module */
import { AdamW, clipGradNorm, fullyShard, int32, scope, tensor } from "../../mod.ts";
import { buildModel, initializeParameters, ownedPtr } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { openLoopback, serveRank } from "../../doors/testing.ts";

/** The values of a rank after each step. */
export interface GateReport {
  /** A hash of this rank's weights. */
  readonly weights: readonly string[];
  readonly steps: readonly number[];
  /** The error of reading the second step's loss. */
  readonly told: string;
}

const [VOCAB, IDS] = [32, 8];

serveRank(async ({ rank, size, world, data: maxNorm }): Promise<GateReport> => {
  const device = await openDevice("cpu", { memoryBytes: 2 ** 26, lateStatus: true });
  using group = openLoopback(world, rank, device, { timeoutSeconds: 60 });
  const sizes = { vocab_size: VOCAB, hidden_size: 16, intermediate_size: 24, max_position_embeddings: IDS };
  const heads = { num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1 };
  const model = buildModel(device, { model_type: "llama", ...sizes, ...heads });
  for (const block of model.layers) fullyShard(block, { mesh: group });
  fullyShard(model, { mesh: group });
  initializeParameters(model, 1);
  const parameters = [...model.parameters()];
  const optimizer = new AdamW(parameters);
  const weights: string[] = [];
  const steps: number[] = [];
  let told = "";
  for (let step = 0; step < 3; step++) {
    using _frame = scope();
    optimizer.zeroGrad();
    const isBad = step === 1 && rank === size - 1;
    const ids = Int32Array.from({ length: IDS }, (_, i) => isBad && i === 3 ? VOCAB : (5 * i + step + rank) % VOCAB);
    const labels = tensor(device, ids.map((id) => id % VOCAB), { shape: [1, IDS], dtype: int32 });
    const { loss } = model.call({ inputIds: tensor(device, ids, { shape: [1, IDS], dtype: int32 }), labels });
    loss?.backward();
    if (typeof maxNorm === "number") clipGradNorm(parameters, maxNorm);
    optimizer.step();
    try {
      loss?.item();
    } catch (error) {
      told += `${error}`;
    }
    const bytes = parameters.flatMap((parameter) => {
      const own = new Uint8Array(parameter.storage.shard.numel * 4);
      if (own.length > 0) device.copyOut(own, ownedPtr(parameter));
      return [...own];
    });
    weights.push(bytes.reduce((hash, byte) => (Math.imul(hash, 31) + byte) | 0, 7).toString(16));
    steps.push(...new Set(parameters.map((parameter) => optimizer.stepsOf(parameter))));
  }
  return { weights, steps, told };
});
