/**
 * Adafactor (Shazeer & Stern 2018), in the order of operations of PyTorch's `torch/optim/_adafactor.py`. Means of rows and of columns
 * need all elements of a matrix in one order, so the gradient of each parameter is gathered on an owner, which alone keeps the factored
 * states; see `matrix_owners.ts`. The norm of a parameter is summed exactly over the ranks, as gradients' norms are.
 *
 * @module
 */
import { at } from "../at.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { CONSTANTS, type UnaryOp } from "../device/kernels/signature.ts";
import type { Kernels } from "../device/kernels/table.ts";
import { float32, int32, int64 } from "../dtype.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { SHARD_BLOCK } from "../tensor/shard_layout.ts";
import { valueText } from "../words.ts";
import type { OptimizerSettings, ParamGroup, ParamGroupOptions } from "./groups.ts";
import { matrixSizes, ownedLayout, OwnedMatrices } from "./matrix_owners.ts";
import { Optimizer } from "./optimizer.ts";
import { isActive } from "./records.ts";
import type { UpdateCall, UpdateRule } from "./rule.ts";
import type { WorkBuffer, WorkMemory } from "./work_memory.ts";

/** Settings of Adafactor; the defaults are PyTorch's. */
export interface AdafactorSettings extends OptimizerSettings {
  /** Limit of the relative step size, which falls as 1/√step. @default 1e-2 */
  learningRate: number;
  /** Decoupled weight decay. @default 0 */
  weightDecay: number;
  /** Exponent of the step in the decay of the second moment, at most 0. @default -0.8 */
  readonly beta2Decay: number;
  /** Two lower bounds: of the second moment's factor, and of a parameter's root mean square. @default [2^-23, 1e-3] */
  readonly eps: readonly [number, number];
  /** Largest root mean square of an update, from 1. @default 1 */
  readonly clipThreshold: number;
}

/** Options of {@link Adafactor}. */
export type AdafactorOptions = Partial<AdafactorSettings>;

const [ROW, COLUMN, VARIANCE] = ["row_var", "col_var", "variance"];
const ACCUMULATOR_BYTES = CONSTANTS.ACCUMULATOR_WORDS * int64.byteLength;

/** The rules of matrices, which are the last two dims of a parameter, and of vectors. */
function ruleOf(states: UpdateRule<AdafactorSettings>["states"]): UpdateRule<AdafactorSettings> {
  return {
    states,
    // The kernel subtracts the update, which has the step size already, and the decay.
    record: ({ weightDecay }, learningRate) => [1, learningRate * weightDecay, 0, 0, 0],
    prepare: prepareOwned,
  };
}

const MATRIX = ruleOf([
  { name: ROW, layout: ownedLayout(({ shape }) => shape.with(-1, 1)) },
  { name: COLUMN, layout: ownedLayout(({ shape }) => shape.with(-2, 1)) },
]);
const VECTOR = ruleOf([{ name: VARIANCE, layout: ownedLayout(({ shape }) => shape) }]);

/** Plans float32 numbers. */
function planFloats(work: WorkMemory, device: Device, count: number): WorkBuffer {
  return work.plan(device, count * float32.byteLength);
}

/** Sends gradients to the owners, which keep the states, and updates with what they send back. */
function prepareOwned(
  { device, bucket, args, state, learningRateOf }: UpdateCall<AdafactorSettings>,
  work: WorkMemory,
): () => void {
  if (device.traits.hostWork.isCapturing) {
    throw new UnsupportedError(
      "Cannot capture a step of Adafactor: the host limits its step size anew in each step. Train without graphs",
    );
  }
  const { flatShard, members, states } = bucket;
  const active = [...members.entries()].filter(([, member]) => isActive(member));
  const parameters = active.map(([, { parameter }]) => parameter);
  for (const parameter of parameters) requireTogether(parameter, device);
  const matrices = new OwnedMatrices(
    parameters,
    members.map(({ parameter }) => parameter),
    float32,
    "Adafactor's gradients",
    work,
  );
  const updates = planFloats(work, device, flatShard.length);
  const norms = planFloats(work, device, parameters.length);
  const writeNorms = prepareNorms(device, parameters, norms, work);
  const uses = active.flatMap(([index, { parameter, group }], place) => {
    const gradient = matrices.owned.get(parameter);
    if (gradient === undefined || parameter.numel === 0) return [];
    return (): () => void =>
      prepareUpdate({
        ...{ device, parameter, group, gradient, gate: args.gate, learningRate: learningRateOf(group) },
        steps: devicePtr(args.steps + index * int32.byteLength),
        norm: () => devicePtr(norms.ptr + place * float32.byteLength),
        state: (name) => {
          const part = at(states.get(name)?.parts ?? [], index, `part of '${name}'`);
          return devicePtr(state(name) + part.begin * float32.byteLength);
        },
      }, work);
  });
  const writeUpdates = work.inTurn(uses);
  return () => {
    writeNorms(flatShard.param);
    for (const parameter of parameters) {
      const { offset } = parameter.storage.shard;
      matrices.write(parameter, { device, ptr: devicePtr(flatShard.grad + offset * float32.byteLength) });
    }
    matrices.sendToOwners();
    for (const writeUpdate of writeUpdates) writeUpdate();
    matrices.returnToRanks();
    for (const parameter of parameters) {
      const { offset, numel } = parameter.storage.shard;
      if (numel === 0) continue;
      const dst = devicePtr(updates.ptr + offset * float32.byteLength);
      device.copy(dst, matrices.part(parameter), numel * float32.byteLength);
    }
    device.kernels.sgd({ ...args, grad: updates.ptr });
  };
}

/** Refuses shards that lie elsewhere than they are computed with. */
function requireTogether({ fqn, device }: Parameter, other: Device): void {
  if (device === other) return;
  throw new UnsupportedError(
    `Cannot update '${fqn}' by Adafactor: it is offloaded to ${other.name}, and its states are computed on ${device.name}. ` +
      "Train without offload, or with AdamW",
  );
}

/**
 * Prepares to write the norm of each parameter over all ranks, one float32 each; the same bits for any number of ranks.
 *
 * @returns writes the norms of parameters in a flat shard
 */
function prepareNorms(
  device: Device,
  parameters: readonly Parameter[],
  norms: WorkBuffer,
  work: WorkMemory,
): (param: DevicePtr) => void {
  const { kernels } = device;
  const gate = planFloats(work, device, 1);
  const accumulators = work.plan(device, parameters.length * ACCUMULATOR_BYTES);
  return (param) => {
    const accumulatorOf = (i: number): DevicePtr => devicePtr(accumulators.ptr + i * ACCUMULATOR_BYTES);
    for (const [i, { storage: { shard: { offset, numel: n } } }] of parameters.entries()) {
      const accumulator = accumulatorOf(i);
      kernels.clearAccumulator({ accumulator });
      if (n === 0) continue;
      const src = devicePtr(param + offset * float32.byteLength);
      kernels.sumPowers({ dtype: float32, power: 2, n, block: SHARD_BLOCK, accumulator, src });
    }
    // Parameters of a flat shard are on the same ranks.
    const words = parameters.length * CONSTANTS.ACCUMULATOR_WORDS;
    parameters[0]?.storage.normReducer?.allReduce(accumulators.ptr, words, int64, "sum");
    for (const i of parameters.keys()) {
      const places = { norm: devicePtr(norms.ptr + i * float32.byteLength), gate: gate.ptr };
      kernels.clipFactor({
        power: 2,
        maxNorm: Infinity,
        ifNonfinite: "keep",
        ...places,
        accumulator: accumulatorOf(i),
      });
    }
  };
}

/** A parameter that this rank owns. */
interface OwnedUpdate {
  readonly device: Device;
  readonly parameter: Parameter;
  readonly group: ParamGroup<AdafactorSettings>;
  readonly learningRate: number;
  /** The unsharded gradient, which the update replaces. */
  readonly gradient: WorkBuffer;
  readonly gate: DevicePtr | undefined;
  /** Steps taken before this one, an int32. */
  readonly steps: DevicePtr;
  /** Address of the norm of the parameter. */
  readonly norm: () => DevicePtr;
  /** Address of a state of the parameter. */
  readonly state: (name: string) => DevicePtr;
}

/** Updates the states of a parameter, and replaces its gradient by its update. */
function prepareUpdate(
  { device, parameter, group, learningRate, gradient: owned, gate, steps, norm, state }: OwnedUpdate,
  work: WorkMemory,
): () => void {
  const { numel: n } = parameter;
  const { kernels } = device;
  const { beta2Decay, eps: [eps1, eps2], clipThreshold } = group;
  const plan = (count: number): WorkBuffer => planFloats(work, device, count);
  const planned = { step: plan(1), share: plan(1), rate: plan(1), size: plan(1), squares: plan(n) };
  const writeFactored = parameter.ndim > 1
    ? prepareFactored(
      { device, parameter, squares: planned.squares, share: planned.share, gate, state, eps: eps1 },
      work,
    )
    : undefined;
  const one = (op: UnaryOp, dst: DevicePtr, src: DevicePtr, p0: number = 0, p1: number = 0, count: number = 1): void =>
    kernels.unary({ dtype: float32, op, n: count, p0, p1, dst, src });
  return () => {
    const [step, share, rate] = [planned.step.ptr, planned.share.ptr, planned.rate.ptr];
    const [size, squares, gradient] = [planned.size.ptr, planned.squares.ptr, owned.ptr];
    kernels.cast({ dstDtype: float32, srcDtype: int32, n: 1, dst: step, src: steps });
    one("addScalar", step, step, 1);
    one("powScalar", share, step, beta2Decay);
    // max(eps2, the parameter's root mean square) * min(learning rate, 1 / √step)
    one("powScalar", rate, step, -0.5);
    one("clamp", rate, rate, -Infinity, learningRate);
    one("mulScalar", size, norm(), 1 / Math.sqrt(n));
    one("clamp", size, size, eps2, Infinity);
    multiply(kernels, size, rate, 1);
    one("square", squares, gradient, 0, 0, n);
    if (writeFactored !== undefined) writeFactored();
    else {
      kernels.lerp({ n, weight: 1, factor: share, dst: state(VARIANCE), src: squares, gate });
      device.copy(squares, state(VARIANCE), n * float32.byteLength);
    }
    one("clamp", squares, squares, eps1 * eps1, Infinity, n);
    one("rsqrt", squares, squares, 0, 0, n);
    const shapes = { shape: [n], aStrides: [1], bStrides: [1] };
    kernels.binary({ dtype: float32, op: "mul", ...shapes, dst: gradient, a: gradient, b: squares });
    // The update's root mean square is at most the threshold.
    one("square", squares, gradient, 0, 0, n);
    kernels.reduce({ dtype: float32, op: "sum", outer: 1, n, inner: 1, dst: rate, src: squares });
    one("sqrt", rate, rate);
    one("mulScalar", rate, rate, 1 / (Math.sqrt(n) * clipThreshold));
    one("clamp", rate, rate, 1, Infinity);
    one("reciprocal", rate, rate);
    multiply(kernels, size, rate, 1);
    multiply(kernels, gradient, size, n);
  };
}

/** `dst *= factor`, a number in device memory. */
function multiply(kernels: Kernels, dst: DevicePtr, factor: DevicePtr, n: number): void {
  kernels.scaleBy({ dtype: float32, n, dst, src: dst, factor });
}

/** A matrix, or several, with the squares of the gradient. */
interface Factored extends Pick<OwnedUpdate, "device" | "parameter" | "gate" | "state"> {
  readonly squares: WorkBuffer;
  /** The share that new means have. */
  readonly share: WorkBuffer;
  readonly eps: number;
}

/** Updates the means of rows and of columns, and replaces the squares by the product of both over the mean of the rows'. */
function prepareFactored(
  { device, parameter, squares, share, gate, state, eps }: Factored,
  work: WorkMemory,
): () => void {
  const { kernels } = device;
  const { outer, rows, cols } = matrixSizes(parameter);
  const plan = (count: number): WorkBuffer => planFloats(work, device, count);
  const [row, column, mean] = [plan(outer * rows), plan(outer * cols), plan(outer)];
  return () => {
    const means = { dtype: float32, op: "mean" } as const;
    kernels.reduce({ ...means, outer: outer * rows, n: cols, inner: 1, dst: row.ptr, src: squares.ptr });
    kernels.reduce({ ...means, outer, n: rows, inner: cols, dst: column.ptr, src: squares.ptr });
    const common = { weight: 1, factor: share.ptr, gate };
    kernels.lerp({ ...common, n: outer * rows, dst: state(ROW), src: row.ptr });
    kernels.lerp({ ...common, n: outer * cols, dst: state(COLUMN), src: column.ptr });
    kernels.reduce({ ...means, outer, n: rows, inner: 1, dst: mean.ptr, src: state(ROW) });
    kernels.unary({ dtype: float32, op: "clamp", n: outer, p0: eps, p1: Infinity, dst: mean.ptr, src: mean.ptr });
    const rowStrides = { shape: [outer, rows, cols], aStrides: [rows, 1, 0], bStrides: [cols, 0, 1] };
    kernels.binary({ dtype: float32, op: "mul", ...rowStrides, dst: squares.ptr, a: state(ROW), b: state(COLUMN) });
    const meanStrides = { shape: [outer, rows * cols], aStrides: [rows * cols, 1], bStrides: [1, 0] };
    kernels.binary({ dtype: float32, op: "div", ...meanStrides, dst: squares.ptr, a: squares.ptr, b: mean.ptr });
  };
}

/**
 * Adafactor over float32 master weights: the states of a matrix are means of its rows and of its columns, kept by one of the ranks that
 * share it. The learning rate is a limit of the step size, which is relative to a parameter's size.
 *
 * @example
 * ```ts
 * import { Adafactor } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { Linear } from "fullyshard/nn";
 * const layer = new Linear(await openDevice("cpu"), 64, 64, { bias: false });
 * const optimizer = new Adafactor(layer.parameters());
 * if (optimizer.stateBytes !== 2 * 64 * 4) throw new Error("a mean for each row and each column");
 * ```
 */
export class Adafactor extends Optimizer<AdafactorSettings> {
  /**
   * Omitted options have the defaults of PyTorch's Adafactor.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(
    parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<AdafactorSettings>>,
    options: AdafactorOptions = {},
  ) {
    const defaults: AdafactorSettings = {
      ...{ learningRate: 1e-2, weightDecay: 0, beta2Decay: -0.8, eps: [2 ** -23, 1e-3], clipThreshold: 1 },
    };
    super(parameters, defaults, options);
  }

  /** Refuses settings that make no sense. */
  protected override check({ learningRate, weightDecay, beta2Decay, eps, clipThreshold }: AdafactorSettings): void {
    const areFinite = [learningRate, weightDecay, ...eps].every((value) => isWithin(value, 0) && value < Infinity);
    const areSound = eps.length === 2 && isWithin(-beta2Decay, 0) && isWithin(clipThreshold, 1);
    if (areFinite && areSound) return;
    throw new ArgumentError(
      `Cannot use learningRate ${valueText(learningRate)}, weightDecay ${valueText(weightDecay)}, beta2Decay ${
        valueText(beta2Decay)
      }, eps [${eps.map(valueText).join(", ")}], clipThreshold ${
        valueText(clipThreshold)
      }: all must be finite, none but beta2Decay may be negative, which may not be positive, and clipThreshold must be at least 1`,
    );
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): Readonly<
    Record<Exclude<keyof AdafactorSettings, keyof OptimizerSettings>, true>
  > {
    return { beta2Decay: true, eps: true, clipThreshold: true };
  }

  /** Means of rows and columns for matrices, of elements for vectors. */
  protected override ruleOf({ shape }: Parameter): UpdateRule<AdafactorSettings> {
    return shape.length > 1 ? MATRIX : VECTOR;
  }
}
