/**
 * Adding an adapter's product to the weights that it lies beside.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { getModelStateDict, requireGroup } from "../checkpoint/state_dict/model_state.ts";
import { convertElements } from "../device/convert.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, InternalError, UnsupportedError } from "../errors.ts";
import { CausalLm } from "../models/causal_lm.ts";
import { Linear } from "../nn/linear.ts";
import type { Module } from "../nn/module.ts";
import { tensor } from "../tensor/create.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import { elementSlices } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { writeParameters } from "../tensor/write.ts";
import type { LoraLayer } from "./lora_layer.ts";
import { loraOf } from "./lora.ts";

/** Elements of a product that a rank makes at once. */
const MOST_ELEMENTS = 1 << 24;

/** A layer's full factors, in host memory. */
interface HostFactors {
  readonly a: Float32Array<ArrayBuffer>;
  readonly b: Float32Array<ArrayBuffer>;
}

/**
 * Adds `scale · B A` to the weight of each layer with an adapter, and takes the adapter off: the model computes the same, up to the
 * rounding of float32, without it, and `model.save()` writes a full model. Quantized weights are dequantized to float32 first. Each rank changes the elements that it owns. Every rank
 * must call it, outside a forward. Frozen parameters stay frozen.
 *
 * @param model one that {@link addLora} was called on, with values
 * @param group the group of the ranks that hold the model; left out by a process on its own
 * @throws {ArgumentError} if the model has no adapter, or the group is missing
 * @throws {UnsupportedError} if a tied table of embeddings has an adapter, as the head's weight would change too
 * @example
 * ```ts ignore
 * mergeLora(model, run.group);
 * await model.save("out/merged");
 * ```
 */
export function mergeLora(model: Module, group?: ProcessGroup): void {
  const lora = loraOf(model);
  if (lora === undefined) throw new ArgumentError("Cannot merge an adapter: the model has none; add one by addLora");
  requireGroup(model, group === undefined ? {} : { group });
  for (const [name, { layer }] of lora.layers) requireOwn(model, name, layer.weight);
  dequantize([...lora.layers.values()].map(({ layer: { weight } }) => weight));
  for (const [name, adapter] of lora.layers) {
    const { layer: { weight }, factors } = adapter;
    const parts = [[`${name} A`, factors.a], [`${name} B`, factors.b]] as const;
    const named = { namedParameters: () => parts, namedBuffers: () => [] };
    const state = getModelStateDict(named, group === undefined ? { cpuOffload: true } : { group, fullStateDict: true });
    const values = parts.map(([part]) => state.get(part)?.toArray());
    const [a, b] = [at(values, 0, "factor"), at(values, 1, "factor")];
    if (a === undefined || b === undefined) throw new InternalError(`no factors of '${name}'`);
    writeParameters([weight], (_, owned) => noGrad(() => addProduct(adapter, { a, b }, owned)));
  }
  lora.remove();
}

/** Keeps in float32, from now on, the values that quantized weights stand for: their products are rounded to no code. */
function dequantize(weights: readonly Parameter[]): void {
  const quantized = weights.filter((weight) => weight.quantized !== undefined);
  for (const { fqn, storage: { kind }, quantized: dtype } of quantized) {
    if (kind === "plain") continue;
    throw new UnsupportedError(
      `Cannot merge the adapter: '${fqn}' is quantized to ${dtype?.name} and ${kind}; merge in a process of its own, without ` +
        "fullyShard and replicate ('fullyshard merge --adapter')",
    );
  }
  for (const weight of quantized) {
    const { device, numel: n, ptr: src, dtype: srcDtype } = weight;
    weight.requireValues();
    const wide = weight.allocateWide();
    convertElements(device, { dstDtype: float32, srcDtype, n, dst: wide.ptr, src });
    weight.dequantize(wide);
  }
}

function requireOwn(model: Module, name: string, weight: Parameter): void {
  const tied = model instanceof CausalLm && [...model.tiedNames.values()].includes(weight.fqn);
  if (!tied) return;
  throw new UnsupportedError(
    `Cannot merge the adapter of '${name}': its weight is tied to the head's, which would change too; keep the adapter apart`,
  );
}

/** Adds the owned elements of a layer's product to its weight, some rows at a time. */
function addProduct({ layer, r, scale }: LoraLayer, { a, b }: HostFactors, owned: DevicePtr): void {
  const { weight } = layer;
  const { storage: { shard, flatShard: { device, dtype } } } = weight;
  const [rows, cols] = [at(shard.shape, 0, "dim"), at(shard.shape, 1, "dim")];
  using _frame = scope();
  const [first, second]: readonly [Tensor, Tensor] = (() => {
    const [aTensor, bTensor] = [
      tensor(device, a, { shape: [r, a.length / r] }),
      tensor(device, b, { shape: [b.length / r, r] }),
    ];
    // A weight [in, out] and a table [vocab, width] take the product transposed.
    const isOutIn = layer instanceof Linear && layer.layout === "outIn";
    return isOutIn ? [bTensor, aTensor] : [aTensor.transpose(0, 1), bTensor.transpose(0, 1)];
  })();
  const step = Math.max(1, Math.floor(MOST_ELEMENTS / cols));
  for (let begin = 0; begin < rows; begin += step) {
    const end = Math.min(rows, begin + step);
    const slices = elementSlices(shard).flatMap(({ offset, length, local }) => {
      const [from, to] = [Math.max(offset, begin * cols), Math.min(offset + length, end * cols)];
      return from < to ? [{ from, length: to - from, local: local + from - offset }] : [];
    });
    if (slices.length === 0) continue;
    using _rows = scope();
    const product = first.narrow(0, begin, end - begin).matmul(second).mul(scale);
    for (const { from, length: n, local } of slices) {
      const dst = devicePtr(owned + local * dtype.byteLength);
      const src = devicePtr(product.ptr + (from - begin * cols) * float32.byteLength);
      device.kernels.accumulate({ dstDtype: dtype, srcDtype: float32, n, dst, src });
    }
  }
}
