/**
 * Optimizer steps of a benchmark's model, as they are run and run dry.
 *
 * @module
 */
import {
  AdamW,
  bfloat16,
  type CausalLm,
  cpuOffloadPolicy,
  float32,
  fullyShard,
  int32,
  replicate,
  scope,
  tensor,
} from "fullyshard";
import type { DeviceMesh, ProcessGroup } from "fullyshard/comm";
import type { Device } from "fullyshard/device";
import { buildModel, initializeParameters } from "fullyshard/nn";
import type { BenchModel } from "./models.ts";

/** The batches of a rank. */
export interface TrainingParts {
  readonly device: Device;
  readonly mesh: ProcessGroup | DeviceMesh;
}

/** Blocks and head are units of their own, so the root's unit has the embedding and the final norm. */
function shard(model: CausalLm, policy: string, mesh: TrainingParts["mesh"]): void {
  if (policy === "ddp") return void replicate(model, { mesh });
  const paramDtype = policy === "fsdp-bf16" ? bfloat16 : float32;
  const options = {
    mesh,
    reshardAfterForward: policy !== "fsdp-keep",
    precision: { paramDtype, reduceDtype: float32 },
    ...policy === "fsdp-offload" ? { offloadPolicy: cpuOffloadPolicy() } : {},
  };
  const head = new Map(model.namedModules()).get("lm_head");
  if (head === undefined) throw new Error("a model without a head");
  for (const module of [...model.layers, head, model]) fullyShard(module, options);
}

/**
 * Makes a model and its optimizer; each call of what it gives is a step on the same batch, and tells the mean loss of its tokens.
 *
 * @param policy `fsdp`, `fsdp-keep`, `fsdp-bf16`, `fsdp-offload` or `ddp`
 */
export function training(
  { config, batch, seq }: BenchModel,
  policy: string,
  learningRate: number,
): (parts: TrainingParts) => () => number {
  return ({ device, mesh }) => {
    const model = buildModel(device, config);
    shard(model, policy, mesh);
    initializeParameters(model, 0);
    const optimizer = new AdamW(model.parameters(), { learningRate });
    const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7919) % config.vocab_size);
    return () => {
      using _step = scope();
      optimizer.zeroGrad();
      const x = tensor(device, ids, { shape: [batch, seq], dtype: int32 });
      const { loss } = model.call({ inputIds: x, labels: x });
      if (loss === undefined) throw new Error("a model without a loss");
      loss.backward();
      optimizer.step();
      return loss.item() / (batch * seq);
    };
  };
}
