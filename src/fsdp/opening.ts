/**
 * How a unit comes to have its segments, and how parameters get their values back when it goes: in steps of which each happens on all
 * ranks or on none, with the parameters as they were until the last.
 *
 * @module
 */
import type { Buffer } from "../device/buffer.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { openFlatShards } from "../tensor/write.ts";
import { planChunks } from "./layout.ts";
import { FlatSegment, type SegmentOptions } from "./segment.ts";
import type { FsdpUnit } from "./unit.ts";

/** What a unit is opened with. */
interface Opened {
  readonly segments: readonly FlatSegment[];
  /** The inverse of the number of ranks; undefined where there are no parameters. */
  readonly scale: DeviceScalar | undefined;
}

/** A segment to be. */
interface PlannedSegment {
  readonly list: readonly Parameter[];
  readonly options: SegmentOptions;
}

/**
 * Opens the segments of a unit, and copies the values that parameters have into them. Collective. The parameters do not change yet.
 * Where it fails on a rank, also in the user's `shardPlacement` or `gatherExtension`, it fails on all, and none keeps memory.
 *
 * @param merged units whose parameters are among these
 */
export function openSegments(unit: FsdpUnit, parameters: readonly Parameter[], merged: readonly FsdpUnit[]): Opened {
  using opened = new DisposableStack();
  const { all } = unit.policy;
  // Memory is opened by calls that all ranks make, so what functions of the user throw on one rank must stop all before them.
  const segments = all.agree(`plan '${unit.name}'`, () => planSegments(unit, parameters)).map(({ list, options }) => {
    const segment = new FlatSegment(unit, list, options);
    opened.defer(() => segment.dispose());
    return segment;
  });
  const scale = all.agree(`shard '${unit.name}'`, () => {
    for (const segment of segments) segment.open();
    const [first] = segments;
    return first && opened.use(first.computeDevice.scalars.make(1 / all.size));
  });
  takeValues(segments, merged.flatMap((one) => one.segments));
  opened.move();
  return { segments, scale };
}

/** The parameters of each segment: those that lie flat together, then those that are cut along a dim, each by itself. */
function planSegments(unit: FsdpUnit, parameters: readonly Parameter[]): readonly PlannedSegment[] {
  const cuts = parameters.map((parameter) => ({ parameter, ...cutOf(unit, parameter) }));
  const flat = cuts.filter(({ plan }) => plan === undefined).map(({ parameter }) => parameter);
  const requiresGrad = flat.filter((parameter) => parameter.requiresGrad);
  // Frozen parameters lie together by what they are kept in.
  const frozen = Map.groupBy(flat.filter((parameter) => !parameter.requiresGrad), ({ frozenDtype }) => frozenDtype);
  const dtypes = [...frozen.keys()].sort((a, b) => b.byteLength - a.byteLength || a.code - b.code);
  const lists = [
    { list: requiresGrad, dtype: float32 },
    ...dtypes.map((dtype) => ({ list: frozen.get(dtype) ?? [], dtype })),
  ].filter(({ list }) => list.length > 0);
  const suffixOf = (dtype: DType): string => dtype === float32 ? " (frozen)" : ` (frozen, ${dtype.name})`;
  return [
    ...lists.map(({ list, dtype }, i) => ({ list, options: { suffix: i === 0 ? "" : suffixOf(dtype), dtype } })),
    ...cuts.flatMap(({ parameter, ...options }) => options.plan === undefined ? [] : { list: [parameter], options }),
  ];
}

/** How a parameter is cut that does not lie flat among others. */
function cutOf({ policy }: FsdpUnit, parameter: Parameter): SegmentOptions {
  const extension = policy.gatherExtension(parameter);
  const dim = policy.shardPlacement(parameter) ?? (extension === undefined ? undefined : 0);
  return dim === undefined ? {} : { plan: planChunks(parameter, dim, policy.group.size), extension };
}

/** Copies the values that parameters have, in memory of their own or in segments of other units. Collective. */
function takeValues(segments: readonly FlatSegment[], others: readonly FlatSegment[]): void {
  const lent = others.flatMap(({ storages }) => storages).filter((storage) => storage.hasValues());
  const present = new Set(lent.map(({ parameter }) => parameter));
  const owners = new Map<Parameter, FlatSegment>();
  for (const segment of segments) {
    for (const { parameter } of segment.storages) {
      if (parameter.storage.kind === "plain" && parameter.buffer.attached) present.add(parameter);
      if (present.has(parameter)) owners.set(parameter, segment);
    }
  }
  using _writing = openFlatShards(new Set(owners.values()));
  for (const [parameter, segment] of owners) {
    if (parameter.storage.kind === "plain") segment.take(parameter, parameter.ptr);
  }
  for (const other of others) other.lendValues((parameter, values) => owners.get(parameter)?.take(parameter, values));
}

/** Values that were taken out of segments, in memory of their own. */
interface TakenValues extends Disposable {
  /** Gives them to their parameters, which must be plain and have no memory. */
  give(): void;
}

/**
 * Copies the whole values of parameters out of segments. Collective: where a rank has no memory for them, all fail and keep none.
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
      segment.computeDevice.copy(own.ptr, ptr, own.byteLength);
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
