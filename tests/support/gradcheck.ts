/**
 * Checks an op's value and gradients against a float64 reference: the value itself, the gradients by central differences of
 * the reference, which are exact to about 1e-9. Every check also counts bytes: nothing may be left.
 *
 * @module
 */
import assert from "node:assert/strict";
import type { Device } from "../../src/device/device.ts";
import { type DType, float32 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, type Tolerance, toleranceOf } from "./allclose.ts";
import { expand, narrow, type Nd, permute, random, sizeOf } from "./reference.ts";

/** One op under test. */
export interface GradCheck {
  readonly label: string;
  readonly inputs: readonly Nd[];
  /** The op over leaves that hold the inputs. */
  readonly run: (...leaves: Tensor[]) => Tensor;
  /** The same in float64. */
  readonly reference: (...inputs: Nd[]) => Nd;
  /** The dtype in which the op computes, to which float32 leaves are cast. @default float32 */
  readonly dtype?: DType;
  readonly tolerance?: Tolerance;
}

const STEP = 1e-5;

/** A leaf with a gradient that holds some values. */
export function leaf(device: Device, { shape, data }: Nd): Parameter {
  const parameter = new Parameter(device, shape);
  parameter.materialize();
  return parameter.copyFromHost(Float32Array.from(data));
}

/** Frees a leaf and its gradient. */
export function disposeLeaf(parameter: Parameter): void {
  parameter.zeroGrad();
  parameter.dispose();
}

/** The gradient of `sum(seed * f(inputs))` with respect to one input, by central differences. */
export function numericGradient(
  f: (...inputs: Nd[]) => Nd,
  inputs: readonly Nd[],
  which: number,
  seed: Nd,
): number[] {
  const lossAt = (element: number, delta: number): number => {
    const moved = inputs.map((input, i) =>
      i === which ? { ...input, data: input.data.map((value, e) => e === element ? value + delta : value) } : input
    );
    return f(...moved).data.reduce((total, value, i) => total + value * (seed.data[i] ?? 0), 0);
  };
  return (inputs[which]?.data ?? []).map((_, e) => (lossAt(e, STEP) - lossAt(e, -STEP)) / (2 * STEP));
}

/** Runs one check. */
export function gradcheck(device: Device, check: GradCheck): void {
  const { label, inputs, run, reference, dtype = float32, tolerance = toleranceOf(dtype) } = check;
  const before = device.allocator.stats.inUse;
  const leaves = inputs.map((input) => leaf(device, input));
  const expected = reference(...inputs);
  const seed = random(expected.shape, 99, 0.25, 1);
  {
    using _frame = scope();
    const output = run(...leaves.map((tensor) => tensor.to(dtype)));
    assert.deepEqual([...output.shape], [...expected.shape], `${label}: shape`);
    allClose(output.toArray(), expected.data, tolerance, `${label}: value`);
    output.backward(tensor(device, seed.data, { shape: seed.shape, dtype: output.dtype }));
  }
  for (const [i, { grad }] of leaves.entries()) {
    assert.ok(grad !== undefined, `${label}: no gradient of input ${i}`);
    assert.deepEqual([...grad.shape], [...inputs[i]?.shape ?? []], `${label}: shape of gradient ${i}`);
    const numeric = numericGradient(reference, inputs, i, seed);
    const scale = Math.max(1, ...numeric.map(Math.abs));
    const allowed = { relative: tolerance.relative, absolute: tolerance.absolute * scale };
    allClose(grad.toArray(), numeric, allowed, `${label}: gradient of input ${i}`);
  }
  for (const parameter of leaves) disposeLeaf(parameter);
  assert.equal(device.allocator.stats.inUse, before, `${label}: bytes left`);
}

/** One way in which an input of some shape may lie in memory. */
interface Lie {
  readonly name: string;
  readonly stored: (shape: readonly number[]) => readonly number[];
  readonly tensor: (x: Tensor, shape: readonly number[]) => Tensor;
  readonly nd: (x: Nd, shape: readonly number[]) => Nd;
}

const backwards = (shape: readonly number[]): number[] => shape.map((_, dim) => shape.length - 1 - dim);
const last = (shape: readonly number[]): number => shape.length - 1;

/** Ways for inputs to lie: dense, with strides in another order, with gaps and an offset, and repeated. */
const LIES: readonly Lie[] = [
  { name: "dense", stored: (shape) => shape, tensor: (x) => x, nd: (x) => x },
  {
    name: "transposed",
    stored: (shape) => shape.toReversed(),
    tensor: (x, shape) => x.permute(backwards(shape)),
    nd: (x, shape) => permute(x, backwards(shape)),
  },
  {
    name: "narrowed",
    stored: (shape) => shape.with(-1, (shape.at(-1) ?? 0) + 3),
    tensor: (x, shape) => x.narrow(last(shape), 2, shape.at(-1) ?? 0),
    nd: (x, shape) => narrow(x, last(shape), 2, shape.at(-1) ?? 0),
  },
  {
    name: "expanded",
    stored: (shape) => shape.with(0, 1),
    tensor: (x, shape) => x.expand(shape),
    nd: (x, shape) => expand(x, shape),
  },
];

/**
 * Runs a check once for each way that its inputs may lie in memory; inputs are random in [low, high).
 *
 * @param shapes shapes that the op sees, each of at least one dim
 */
export function gradcheckLayouts(
  device: Device,
  check: Omit<GradCheck, "inputs">,
  shapes: readonly (readonly number[])[],
  low: number = -1,
  high: number = 1,
): void {
  for (const lie of LIES) {
    gradcheck(device, {
      ...check,
      label: `${check.label} (${lie.name})`,
      inputs: shapes.map((shape, i) => random(lie.stored(shape), 7 * i + sizeOf(shape), low, high)),
      run: (...leaves) => check.run(...leaves.map((x, i) => lie.tensor(x, shapes[i] ?? []))),
      reference: (...inputs) => check.reference(...inputs.map((x, i) => lie.nd(x, shapes[i] ?? []))),
    });
  }
}
