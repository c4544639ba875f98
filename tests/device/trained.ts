/** A few steps of a small model, whose kernels are large enough to be shared between threads. @module */
import { AdamW, int32, scope, tensor } from "../../mod.ts";
import type { Device } from "../../doors/device.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";

const [BATCH, SEQ, VOCAB] = [2, 160, 512];

/** The losses and the last weights, all as bits. */
export function trained(device: Device): Uint32Array[] {
  const model = buildModel(device, {
    model_type: "llama",
    vocab_size: VOCAB,
    hidden_size: 128,
    intermediate_size: 352,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: SEQ,
  });
  initializeParameters(model, 7);
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
  const ids = Int32Array.from({ length: BATCH * SEQ }, (_, i) => (i * 7919 + 13) % VOCAB);
  const losses: number[] = [];
  for (let step = 0; step < 3; step++) {
    using _step = scope();
    optimizer.zeroGrad();
    const inputIds = tensor(device, ids, { shape: [BATCH, SEQ], dtype: int32 });
    const { loss } = model.call({ inputIds, labels: inputIds });
    loss?.backward();
    optimizer.step();
    losses.push(loss?.item() ?? NaN);
  }
  const weights = [...model.parameters()].map((parameter) => Float32Array.from(parameter.toArray()));
  return [Float32Array.from(losses), ...weights].map(({ buffer }) => new Uint32Array(buffer));
}
