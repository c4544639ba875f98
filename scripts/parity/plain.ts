/**
 * A step of one rank on plain parameters, which knows neither DDP nor FSDP: gradients of all micro-batches are added in the order
 * in which ranks would sum them, scaled once, clipped and stepped with.
 *
 * @module
 */
import { clipGradNorm, scope, tensor } from "../../mod.ts";
import { float32, int32 } from "../../src/dtype.ts";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import type { MicroBatch } from "../../doors/data.ts";
import type { StepContext, StepResult } from "../../doors/config.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";

/**
 * @param microBatches in the order of the ranks
 * @param replicas parts of equal length that are each summed first
 */
export function plainStep(
  { device, model, optimizer, maxGradNorm }: StepContext,
  microBatches: readonly MicroBatch[],
  replicas: number,
): Pick<StepResult, "loss" | "gradNorm"> {
  using _step = scope();
  const parameters = [...model.parameters()];
  const tokens = microBatches.reduce((sum, { labels }) => sum + labels.filter((id) => id !== IGNORE_INDEX).length, 0);
  const losses: Tensor[] = [];
  const sums: (Tensor | undefined)[][] = [];
  const length = microBatches.length / replicas;
  for (let begin = 0; begin < microBatches.length; begin += length) {
    optimizer.zeroGrad();
    for (const { inputIds, labels, batch, seq, random } of microBatches.slice(begin, begin + length)) {
      const of = (ids: typeof inputIds): Tensor => tensor(device, ids, { shape: [batch, seq], dtype: int32 });
      const { loss } = model.call({ inputIds: of(inputIds), labels: of(labels), random });
      if (loss === undefined) throw new Error("no loss");
      loss.backward();
      losses.push(loss);
    }
    sums.push(parameters.map(({ grad }) => grad?.mul(1)));
  }
  using scale = device.scalars.make(1 / tokens);
  const addTo = (dst: Tensor, sources: readonly Tensor[]): void => {
    const pointers = sources.map(({ ptr }) => ptr);
    const sum = { dtype: float32, dstDtype: float32, n: dst.numel, accumulate: false, pastCaches: false };
    device.kernels.sumRanks({ ...sum, dst: dst.ptr, sources: pointers, scale: scale.ptr });
  };
  for (const [i, { grad }] of parameters.entries()) {
    if (grad !== undefined) addTo(grad, sums.flatMap((part) => part[i] ?? []));
  }
  const loss = tensor(device, [0], { shape: [] });
  addTo(loss, losses);
  const norm = clipGradNorm(parameters, maxGradNorm, { errorIfNonfinite: true });
  optimizer.step();
  return { loss: loss.item(), gradNorm: norm.item() };
}
