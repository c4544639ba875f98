/**
 * Computes a case: outputs, and the gradients of its leaves.
 *
 * @module
 */
import assert from "node:assert/strict";
import { at } from "../../src/at.ts";
import type { Device } from "../../src/device/device.ts";
import { bfloat16, type DType, float16, float32, int32, uint8 } from "../../src/dtype.ts";
import { applyActivationCheckpointing, SAVEABLE_OPS } from "../../src/nn/activation_checkpointing.ts";
import { Module } from "../../src/nn/module.ts";
import { numelOf, type Shape } from "../../src/shape.ts";
import { tensor } from "../../src/tensor/create.ts";
import { GradientSlot } from "../../src/tensor/gradient_slot.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import { Tensor } from "../../src/tensor/tensor.ts";
import type { Case, CaseInput, CaseText, Lie } from "./cases.ts";
import { mix, numbersOf } from "./draw.ts";

/** Numbers of outputs, and of gradients in the order of the trained leaves. */
export interface Computed {
  readonly outputs: readonly (readonly number[])[];
  readonly gradients: readonly (readonly number[] | undefined)[];
}

const DTYPES: ReadonlyMap<string, DType> = new Map(
  [float32, bfloat16, float16, int32, uint8].map((dtype) => [dtype.name, dtype]),
);

/** The dtype of a name. */
export function dtypeOf(name: string): DType {
  return DTYPES.get(name) ?? assert.fail(`no dtype ${name}`);
}

function lie(x: Tensor, layout: Lie): Tensor {
  switch (layout.how) {
    case "dense":
      return x;
    case "permuted":
      return x.permute(layout.dims);
    case "narrowed":
      return x.narrow(layout.dim, layout.start, layout.length);
    case "expanded":
      return x.expand(layout.shape);
  }
}

/** The form of a case that everything else must agree with: of float32, dense, and of leaves themselves. */
export function plainForm({ text, run, ...rest }: Case): Case {
  const inputs = text.inputs.map((input) => {
    return "same" in input || dtypeOf(input.dtype).kind !== "float"
      ? input
      : { ...input, dtype: float32.name, via: "cast" as const };
  });
  const dense: Case["run"] = (tensors) => run(tensors.map((x) => x.contiguous()));
  return { text: { ...text, inputs, dtype: float32.name }, run: dense, ...rest };
}

/** The leaves that receive gradients. */
interface Leaf {
  readonly isTrained: boolean;
  gradient(): Tensor | undefined;
  free(): void;
}

/** A float32 parameter. */
function parameterOf(
  device: Device,
  shape: Shape,
  values: readonly number[],
  isTrained: boolean,
  leaves: Leaf[],
): Tensor {
  const parameter = new Parameter(device, shape, { requiresGrad: isTrained });
  parameter.materialize();
  parameter.copyFromHost(Float32Array.from(values));
  leaves.push({
    isTrained,
    gradient: () => parameter.grad,
    free: () => {
      parameter.zeroGrad();
      parameter.dispose();
    },
  });
  return parameter;
}

/** A leaf of any dtype whose gradient has a place in float32, as parallelisms make it: ops may write there. */
function placedOf(device: Device, shape: Shape, values: readonly number[], dtype: DType, leaves: Leaf[]): Tensor {
  const leaf = tensor(device, values, { shape, dtype });
  const place = Tensor.empty(device, shape, float32, "place");
  const sink = new GradientSlot({ place: () => place.alias(), dtype: float32 });
  leaf.setEdge({ node: undefined, index: 0, sink, shape: leaf.shape, dtype });
  leaves.push({
    isTrained: true,
    gradient: () => sink.gradient(),
    free: () => {
      sink.clear();
      place.dispose();
    },
  });
  return leaf;
}

function inputOf(device: Device, input: Exclude<CaseInput, { same: number }>, leaves: Leaf[]): Tensor {
  const { stored, trained, via, layout } = input;
  const dtype = dtypeOf(input.dtype);
  const values = numbersOf(input.data, numelOf(stored), input.seed);
  if (dtype.kind !== "float") return lie(tensor(device, values, { shape: stored, dtype }), layout);
  if (via === "placed" && trained) return lie(placedOf(device, stored, values, dtype, leaves), layout);
  const cast = parameterOf(device, stored, values, trained, leaves).to(dtype);
  return lie(via === "scaled" ? cast.mul(1) : via === "cloned" ? cast.clone() : cast, layout);
}

/** An op as a module, which may be checkpointed. */
class Called extends Module<[inputs: readonly Tensor[]], readonly Tensor[]> {
  readonly #run: Case["run"];

  constructor(run: Case["run"]) {
    super();
    this.#run = run;
  }

  forward(inputs: readonly Tensor[]): readonly Tensor[] {
    return this.#run(inputs);
  }
}

/** Computes a case: in some, activations are recomputed in the backward, all of them or all but some results. */
function callOf({ text: { number }, run }: Case): Case["run"] {
  if (number % 4 !== 0) return run;
  const module = new Called(run);
  applyActivationCheckpointing(module, { saveOps: number % 8 === 0 ? SAVEABLE_OPS : [] });
  return (inputs) => module.call(inputs);
}

/** The largest number that outputs are multiplied by. */
export function largestSeed({ how }: CaseText["way"]): number {
  return how === "summed" ? 7 : 2;
}

/** The sum of an output, each element times its seed; the output goes there in some layout. */
function weighted(out: Tensor, { how, dim }: CaseText["way"], seed: number): Tensor {
  if (how === "summed") return out.sum().to(float32).mul(mix(seed) % 7 + 1);
  let laid = out;
  if (how === "transposed") laid = out.permute([...out.shape.keys()].reverse());
  else if (how === "expanded") laid = out.unsqueeze(0).expand([2, ...out.shape]);
  else if (how === "narrowed" && out.ndim > 0) {
    const place = dim % out.ndim;
    const size = at(out.shape, place, "dim");
    const start = Math.floor(size / 3);
    laid = out.narrow(place, start, Math.max(size - start - 1, Math.min(size, 1)));
  }
  const seeds = numbersOf({ kind: how === "expanded" ? "small" : "signed" }, laid.numel, seed);
  return laid.to(float32).mul(tensor(laid.device, seeds, { shape: laid.shape })).sum();
}

/** Runs a case. Nothing is left on the device. */
export function runCase(device: Device, one: Case): Computed {
  const { inputs: specs, again, way } = one.text;
  const before = device.allocator.stats.inUse;
  const leaves: Leaf[] = [];
  const outputs: (readonly number[])[] = [];
  {
    using _frame = scope();
    const inputs: Tensor[] = [];
    for (const spec of specs) {
      inputs.push("same" in spec ? at(inputs, spec.same, "input") : inputOf(device, spec, leaves));
    }
    const losses: Tensor[] = [];
    const useAgain = (): void => {
      if (again !== undefined) losses.push(weighted(at(inputs, again, "input"), way, way.seed - 1));
    };
    // Gradients arrive from the last op to the first: those of this use after those of the op, or before.
    const isEarly = way.seed % 2 === 0;
    if (isEarly) useAgain();
    const results = callOf(one)(inputs);
    if (!isEarly) useAgain();
    for (const [i, result] of results.entries()) {
      outputs.push([...result.toArray()]);
      if (result.requiresGrad) losses.push(weighted(result, way, way.seed + i));
    }
    if (losses.length > 0) losses.reduce((sum, loss) => sum.add(loss)).backward();
  }
  const trained = leaves.filter(({ isTrained }) => isTrained);
  const gradients = trained.map((leaf) => {
    const gradient = leaf.gradient();
    return gradient === undefined ? undefined : [...gradient.toArray()];
  });
  for (const leaf of leaves) leaf.free();
  assert.equal(device.allocator.stats.inUse, before, "bytes left");
  return { outputs, gradients };
}
