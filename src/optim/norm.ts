/**
 * Norms of all gradients together, over all ranks. Gradients that are shared in the same way are summed together, with one all-reduce
 * for each axis that they are cut over.
 *
 * Note [Bits of a norm]: a norm has the same bits for any number of ranks, for three reasons:
 * - each block of 64 elements is summed in float64, in a fixed order;
 * - the sums of blocks are added as integers, which is exact; a largest magnitude needs no rounding;
 * - no border between ranks lies within a block of a flat segment. A parameter that is cut along a dim may have such a border: its norm
 *   depends on the number of ranks in the last bits.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { float32, int64 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { isDense } from "../shape.ts";
import type { NormReducer } from "../tensor/norm_reducer.ts";
import { isCountedHere } from "../tensor/owners.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { SHARD_BLOCK } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";

const { ACCUMULATOR_WORDS } = CONSTANTS;
const ACCUMULATOR_BYTES = ACCUMULATOR_WORDS * int64.byteLength;
/** Floats for the largest value and the fault of a rank. */
const LARGEST_FLOATS = 2;

/** A p-norm: the p-th root of the sum of p-th powers, or the largest magnitude. */
export type NormType = 1 | 2 | 3 | typeof Infinity;

/** @throws {ArgumentError} for a number that is not a {@link NormType} */
export function requireNormType(type: number): void {
  if ([1, 2, 3, Infinity].includes(type)) return;
  throw new ArgumentError(`Cannot take the ${type}-norm of gradients: normType must be 1, 2, 3 or Infinity`);
}

/**
 * Writes two things to an accumulator: the sum of powers, whose root is the norm, and the faults of all ranks.
 *
 * @param parameters parameters whose ranks all take part
 * @param counted those of the parameters whose gradients are summed
 * @param accumulator `ACCUMULATOR_WORDS` int64
 */
export function sumOfPowers(
  parameters: readonly Parameter[],
  counted: readonly Parameter[],
  type: NormType,
  { device, ptr: accumulator }: Buffer,
): void {
  const reducers = new Set(parameters.map(({ storage }) => storage.normReducer));
  const groups = Array.from(reducers, (reducer) => ({
    reducer,
    grads: counted.filter(({ storage, owners }) => storage.normReducer === reducer && isCountedHere(owners))
      .flatMap(gradOf),
  }));
  // Stages of a pipeline keep different parameters: each has summed its own over its other axes, and all sums are added last.
  const stages = parameters.find(({ owners }) => owners !== undefined)?.owners?.axis.normReducer;
  if (type === Infinity) addLargest(device, groups, accumulator, stages);
  else addPowers(device, groups, type, accumulator, stages);
}

/** Gradients that one reducer combines over its ranks; without a reducer, gradients that every rank has in full. */
interface Group {
  readonly reducer: NormReducer | undefined;
  readonly grads: readonly Tensor[];
}

/** The gradient as a list; an empty list if there is none. */
function gradOf({ grad, fqn }: Parameter): readonly Tensor[] {
  if (grad === undefined) return [];
  if (!isDense(grad.layout)) throw new ArgumentError(`The gradient of '${fqn}' must be dense`);
  return [grad];
}

/** Sums powers of gradients that lie on `device`. */
function sumThere(device: Device, grads: readonly Tensor[], power: number, accumulator: DevicePtr): void {
  device.kernels.clearAccumulator({ accumulator });
  for (const { dtype, numel: n, ptr: src } of grads) {
    device.kernels.sumPowers({ dtype, power, n, block: SHARD_BLOCK, accumulator, src });
  }
}

/** Sums powers of offloaded gradients on their device, copies the sum to the compute device and adds it there. */
function addFrom(other: Device, device: Device, grads: readonly Tensor[], power: number, accumulator: DevicePtr): void {
  using buffers = new DisposableStack();
  const allocate = (on: Device): Buffer =>
    buffers.adopt(Buffer.allocate(on, ACCUMULATOR_BYTES, "gradient norm"), (buffer) => buffer.release());
  const [there, here] = [allocate(other), allocate(device)];
  sumThere(other, grads, power, there.ptr);
  copyAcross(here, there, ACCUMULATOR_BYTES);
  sumAccumulators(device, accumulator, [accumulator, here.ptr]);
}

function sumAccumulators({ kernels }: Device, dst: DevicePtr, sources: readonly DevicePtr[]): void {
  const how = { dtype: int64, dstDtype: int64, n: ACCUMULATOR_WORDS, accumulate: false, pastCaches: false };
  kernels.sumRanks({ ...how, dst, sources });
}

function addPowers(
  device: Device,
  groups: readonly Group[],
  power: number,
  total: DevicePtr,
  stages: NormReducer | undefined,
): void {
  const accumulators = Buffer.allocate(device, groups.length * ACCUMULATOR_BYTES, "gradient norm");
  try {
    const sources = groups.map(({ reducer, grads }, i) => {
      const accumulator = devicePtr(accumulators.ptr + i * ACCUMULATOR_BYTES);
      sumThere(device, grads.filter((grad) => grad.device === device), power, accumulator);
      for (const [other, theirs] of Map.groupBy(grads, (grad) => grad.device)) {
        if (other !== device) addFrom(other, device, theirs, power, accumulator);
      }
      reducer?.allReduce(accumulator, ACCUMULATOR_WORDS, int64, "sum");
      return accumulator;
    });
    sumAccumulators(device, total, sources);
    stages?.allReduce(total, ACCUMULATOR_WORDS, int64, "sum");
  } finally {
    accumulators.release();
  }
}

/** Writes the largest magnitude of a gradient, a float32, also where the gradient lies on another device. */
function writeLargest({ device, dtype, numel: n, ptr: src }: Tensor, to: Pick<Buffer, "device" | "ptr">): void {
  if (device === to.device) return device.kernels.maxAbs({ dtype, n, dst: to.ptr, src });
  const there = Buffer.allocate(device, float32.byteLength, "gradient norm");
  try {
    device.kernels.maxAbs({ dtype, n, dst: there.ptr, src });
    copyAcross(to, there, float32.byteLength);
  } finally {
    there.release();
  }
}

function addLargest(
  device: Device,
  groups: readonly Group[],
  accumulator: DevicePtr,
  stages: NormReducer | undefined,
): void {
  const { kernels } = device;
  const count = groups.reduce((sum, { grads }) => sum + grads.length, 0);
  const room = Buffer.allocate(device, (count + groups.length * LARGEST_FLOATS) * float32.byteLength, "gradient norm");
  const at = (float: number): DevicePtr => devicePtr(room.ptr + float * float32.byteLength);
  let next = groups.length * LARGEST_FLOATS;
  try {
    for (const [i, { reducer, grads }] of groups.entries()) {
      const [first, largest] = [next, at(i * LARGEST_FLOATS)];
      for (const grad of grads) writeLargest(grad, { device, ptr: at(next++) });
      kernels.largest({ n: grads.length, dst: largest, src: at(first) });
      reducer?.allReduce(largest, LARGEST_FLOATS, float32, "max");
      if (i === 0) continue;
      const strides = { shape: [LARGEST_FLOATS], aStrides: [1], bStrides: [1] };
      kernels.binary({ dtype: float32, op: "maximum", ...strides, dst: at(0), a: at(0), b: largest });
    }
    stages?.allReduce(at(0), LARGEST_FLOATS, float32, "max");
    kernels.accumulateLargest({ accumulator, src: at(0) });
  } finally {
    room.release();
  }
}
