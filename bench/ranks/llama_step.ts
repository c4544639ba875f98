/**
 * A step of Llama 3.2's shape with 1 B parameters, or of a small one, as cards train it: FSDP, each block and the rest a unit,
 * bfloat16 gathered from float32 shards, gradients clipped, AdamW.
 *
 * @module
 */
import { AdamW, bfloat16, clipGradNorm, float32, fullyShard, int32, scope, type Tensor, tensor } from "fullyshard";
import type { ProcessGroup } from "fullyshard/comm";
import { StepGraph, trainStep } from "fullyshard/config";
import type { Device } from "fullyshard/device";
import { buildModel, initializeParameters } from "fullyshard/nn";

/** The size of a step. */
export interface LlamaSize {
  readonly vocab: number;
  readonly hidden: number;
  readonly inner: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly seq: number;
  readonly batch: number;
}

/** The sizes, by name; `1b` is Llama 3.2 1B at 4096 tokens, a sample a step. */
export const LLAMA_SIZES: { readonly [name in "1b" | "small"]: LlamaSize } = {
  "1b": { vocab: 128256, hidden: 2048, inner: 8192, layers: 16, heads: 32, kvHeads: 8, seq: 4096, batch: 1 },
  small: { vocab: 96, hidden: 32, inner: 48, layers: 2, heads: 4, kvHeads: 2, seq: 24, batch: 2 },
};

/** A model that is ready to be trained. */
export interface LlamaStep {
  readonly parameters: number;
  /** Takes a step; the host waits for nothing. What is given gets the loss, which ends with the step. */
  readonly step: (seen?: (loss: Tensor) => void) => void;
}

/** A model that is ready to be trained by a graph. */
export interface CapturedLlamaStep extends LlamaStep {
  /** Takes a step as the trainer does, which reads loss and norm. */
  readonly readStep: () => void;
}

/** Makes the model on a device, sharded over a group, with its optimizer and the tokens of a step. */
function setUp(device: Device, group: ProcessGroup, size: LlamaSize) {
  const { vocab, seq, batch } = size;
  const model = buildModel(device, {
    model_type: "llama",
    vocab_size: vocab,
    hidden_size: size.hidden,
    intermediate_size: size.inner,
    num_hidden_layers: size.layers,
    num_attention_heads: size.heads,
    num_key_value_heads: size.kvHeads,
    max_position_embeddings: seq,
    rope_theta: 500000,
    tie_word_embeddings: true,
  });
  const options = { mesh: group, precision: { paramDtype: bfloat16, reduceDtype: float32 } };
  for (const block of model.layers) fullyShard(block, options);
  const root = fullyShard(model, options);
  initializeParameters(model, 0);
  const parameters = [...model.parameters()];
  const optimizer = new AdamW(parameters, { learningRate: 1e-4, weightDecay: 0.1 });
  const ids = Int32Array.from({ length: batch * seq + 1 }, (_, i) => (i * 7919 + group.rank * 104729) % vocab);
  const tokens = { inputIds: ids.subarray(0, -1), labels: ids.subarray(1), batch, seq };
  const count = parameters.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
  return { model, root, parameters, optimizer, tokens, count };
}

/** Makes the model, and steps of it call by call. */
export function llamaStep(device: Device, group: ProcessGroup, size: LlamaSize): LlamaStep {
  const { model, root, parameters, optimizer, tokens, count } = setUp(device, group, size);
  const { inputIds, labels, batch, seq } = tokens;
  root.setGradientDivideFactor(batch * seq * group.size);
  const shape = [batch, seq];
  const step = (seen?: (loss: Tensor) => void): void => {
    using _frame = scope();
    optimizer.zeroGrad();
    const { loss } = model.call({
      inputIds: tensor(device, inputIds, { shape, dtype: int32 }),
      labels: tensor(device, labels, { shape, dtype: int32 }),
    });
    if (loss === undefined) throw new Error("a model without a loss");
    loss.backward();
    clipGradNorm(parameters, 1);
    optimizer.step();
    seen?.(loss);
  };
  return { parameters: count, step };
}

/** Makes the model, and steps of it by a graph from the fourth on. */
export function capturedStep(device: Device, group: ProcessGroup, size: LlamaSize): CapturedLlamaStep {
  const { model, optimizer, tokens, count } = setUp(device, group, size);
  const context = { device, group, model, optimizer, maxGradNorm: 1, graph: new StepGraph(device) };
  const batch = { microBatches: [tokens] };
  let number = 0;
  const step = (seen?: (loss: Tensor) => void): void => {
    using _frame = scope();
    group.step = ++number;
    const { loss } = context.graph.take(context, batch);
    seen?.(loss);
  };
  return { parameters: count, step, readStep: () => void trainStep(context, batch, ++number) };
}
