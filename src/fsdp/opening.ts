/**
 * Opens the segments of a unit, and gives parameters their values back when a unit is dissolved. Each step happens on all ranks or on
 * none, and the parameters change in the last step only.
 *
 * @module
 */
import type { Buffer } from "../device/buffer.ts";
import { convertElements } from "../device/convert.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { openFlatShards } from "../tensor/write.ts";
import { planChunks } from "./layout.ts";
import { FlatSegment, type SegmentOptions } from "./segment.ts";
import type { FsdpUnit } from "./unit.ts";

/** The segments of a unit, and the factor on its sums. */
interface Opened {
  readonly segments: readonly FlatSegment[];
  /** 1 / `gradientDivideFactor` of the unit, in device memory. Undefined without parameters. */
  readonly scale: DeviceScalar | undefined;
}

/** Parameters of a segment that is not opened yet. */
interface PlannedSegment {
  readonly list: readonly Parameter[];
  readonly options: SegmentOptions;
}

/**
 * Opens the segments of a unit, and copies the values that parameters have into them. Collective. The parameters do not change yet.
 * If it fails on a rank, also in the user's `shardPlacement` or `gatherExtension`, it fails on all ranks, and none keeps memory.
 *
 * @param merged units whose parameters are among these
 */
export function openSegments(unit: FsdpUnit, parameters: readonly Parameter[], merged: readonly FsdpUnit[]): Opened {
  using opened = new DisposableStack();
  const { all } = unit.policy;
  // Opening a window is collective. So an error of the user's functions on one rank must stop all ranks first.
  const segments = all.agree(`plan '${unit.name}'`, () => planSegments(unit, parameters)).map(({ list, options }) => {
    const segment = new FlatSegment(unit, list, options);
    opened.defer(() => segment.dispose());
    return segment;
  });
  const scale = all.agree(`shard '${unit.name}'`, () => {
    for (const segment of segments) segment.allocateShard();
    const [first] = segments;
    return first && opened.use(first.computeDevice.scalars.make(1 / unit.gradientDivideFactor));
  });
  takeValues(segments, merged.flatMap((one) => one.segments));
  opened.move();
  return { segments, scale };
}

/** The parameters of each segment: first those that lie flat together, then each that is cut along a dim. */
function planSegments(unit: FsdpUnit, parameters: readonly Parameter[]): readonly PlannedSegment[] {
  const cuts = parameters.map((parameter) => ({ parameter, ...cutOf(unit, parameter) }));
  const flat = cuts.filter(({ plan }) => plan === undefined).map(({ parameter }) => parameter);
  // The gradients of parameters that several stages of a pipeline keep are added between these: they lie alike on each, by themselves.
  const lists = [
    ...byDtype(flat.filter((parameter) => !isShared(parameter)), ""),
    ...byDtype(flat.filter(isShared), " (shared)"),
  ];
  return [
    ...lists.map(({ list, dtype, suffix }, i) => ({ list, options: { suffix: i === 0 ? "" : suffix, dtype } })),
    ...cuts.flatMap(({ parameter, ...options }) => options.plan === undefined ? [] : { list: [parameter], options }),
  ];
}

/** Lists of parameters that lie together: one list of all that require a gradient, and one of the frozen parameters of each dtype. */
function byDtype(
  parameters: readonly Parameter[],
  suffix: string,
): readonly { readonly list: readonly Parameter[]; readonly dtype: DType; readonly suffix: string }[] {
  const frozen = Map.groupBy(
    parameters.filter((parameter) => !parameter.requiresGrad),
    ({ quantized, frozenDtype }) => quantized ?? frozenDtype,
  );
  const dtypes = [...frozen.keys()].sort((a, b) => b.byteLength - a.byteLength || a.code - b.code);
  const suffixOf = (dtype: DType): string => dtype === float32 ? " (frozen)" : ` (frozen, ${dtype.name})`;
  return [
    { list: parameters.filter(({ requiresGrad }) => requiresGrad), dtype: float32, suffix },
    ...dtypes.map((dtype) => ({ list: frozen.get(dtype) ?? [], dtype, suffix: suffix + suffixOf(dtype) })),
  ].filter(({ list }) => list.length > 0);
}

/** True if several stages of a pipeline keep the parameter. */
function isShared({ owners }: Parameter): boolean {
  return owners !== undefined && owners.places.length > 1;
}

/** The plan and extension of a parameter that is cut along a dim; nothing for a parameter that lies flat among others. */
function cutOf({ policy }: FsdpUnit, parameter: Parameter): SegmentOptions {
  const extension = policy.gatherExtension(parameter);
  const dim = policy.shardPlacement(parameter) ?? (extension === undefined ? undefined : 0);
  if (dim !== undefined && parameter.quantized !== undefined) {
    throw new ArgumentError(
      `Cannot shard '${parameter.fqn}' along a dim or by an extension: it is quantized to ${parameter.quantized.name}, in blocks that ` +
        "lie flat; leave it out of shardPlacement and gatherExtension",
    );
  }
  return dim === undefined ? {} : { plan: planChunks(parameter, dim, policy.group.size), extension };
}

/** Copies the values of parameters from their own memory, or from segments of merged units, to the new segments. Collective. */
function takeValues(segments: readonly FlatSegment[], others: readonly FlatSegment[]): void {
  const lent = others.flatMap(({ storages }) => storages).filter((storage) => storage.hasValues());
  const present = new Set(lent.map(({ parameter }) => parameter));
  const owners = new Map<Parameter, FlatSegment>();
  for (const segment of segments) {
    for (const { parameter } of segment.storages) {
      if (parameter.storage.kind === "plain" && parameter.buffer.hasMemory) present.add(parameter);
      if (present.has(parameter)) owners.set(parameter, segment);
    }
  }
  using _writing = openFlatShards(new Set(owners.values()));
  for (const [parameter, segment] of owners) {
    if (parameter.storage.kind === "plain") {
      segment.copyFrom(parameter, parameter.ptr, parameter.storage.flatShard.dtype);
    }
  }
  for (const other of others) {
    other.lendValues((parameter, values) => owners.get(parameter)?.copyFrom(parameter, values, float32));
  }
}

/** Full values of parameters, in new memory. */
interface TakenValues extends Disposable {
  /** Gives the values to their parameters, which must be plain and have no memory. */
  give(): void;
}

/**
 * Copies the full values of parameters out of segments. Collective: where a rank has no memory for them, all ranks fail and keep none.
 *
 * @throws {OutOfMemoryError} on that rank
 */
export function takeOutValues(segments: readonly FlatSegment[]): TakenValues {
  using owned = new DisposableStack();
  const values = new Map<Parameter, Buffer>();
  for (const segment of segments) {
    const present = segment.storages.filter((storage) => storage.hasValues());
    segment.lendValues((parameter, ptr) => {
      const own = values.get(parameter);
      if (own === undefined) throw new InternalError(`no memory for '${parameter.fqn}'`);
      const { numel: n, quantized } = parameter;
      if (quantized === undefined) segment.computeDevice.copy(own.ptr, ptr, own.byteLength);
      else {convertElements(segment.computeDevice, {
          dstDtype: quantized,
          srcDtype: float32,
          n,
          dst: own.ptr,
          src: ptr,
        });}
    }, () => {
      for (const { parameter } of present) values.set(parameter, owned.use(parameter.allocatePlain()));
    });
  }
  const kept = owned.move();
  return {
    give(): void {
      for (const [parameter, own] of values) {
        own.retain();
        parameter.takePlain(own);
      }
    },
    [Symbol.dispose]: () => kept.dispose(),
  };
}
