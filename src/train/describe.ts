/**
 * What a sharded module looks like: its units, their sizes, and what padding costs.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import { shardedModuleOf } from "../fsdp/handle.ts";

/** One unit of a sharded module; numbers count elements. */
export interface UnitDescription {
  /** FQN of its module; the class for a root. */
  readonly name: string;
  /** Parameters in the unit. */
  readonly numParameters: number;
  /** Elements of its parameters, over all ranks. */
  readonly numel: number;
  /** Elements that belong to no parameter, over all ranks. */
  readonly padding: number;
  /** Ranks that share it. */
  readonly world: number;
  /** Copies of it that there are, over all ranks. */
  readonly replicas: number;
  /** Bytes of master weights that each rank keeps, padding included. */
  readonly bytesPerRank: number;
}

/**
 * Describes the units of a sharded module, the root's first.
 *
 * @throws {ArgumentError} if it is not sharded
 * @example
 * ```ts
 * import { describeSharding, fullyShard } from "fullyshard";
 * import { Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * import { openProcessGroup } from "fullyshard/comm";
 * const device = await openDevice("cpu");
 * const layer = new Linear(device, 64, 64);
 * fullyShard(layer, { mesh: await openProcessGroup({ device }) });
 * if (describeSharding(layer)[0]?.padding !== 0) throw new Error("both parameters end on a block");
 * ```
 */
export function describeSharding(module: Module): readonly UnitDescription[] {
  const sharded = shardedModuleOf(module);
  if (sharded === undefined) throw new ArgumentError(`Cannot describe ${module.constructor.name}: it is not sharded`);
  return sharded.units().map(({ name, segments, policy }) => {
    const total = (of: (segment: typeof segments[number]) => number): number =>
      segments.reduce((sum, segment) => sum + of(segment), 0);
    const padding = total(({ plan }) => plan.padding);
    const whole = total(({ plan }) => plan.runLength * plan.world);
    return {
      name,
      numParameters: total(({ storages }) => storages.length),
      numel: whole - padding,
      padding,
      world: policy.group.size,
      replicas: policy.all.size / policy.group.size,
      bytesPerRank: total(({ plan }) => plan.runLength * float32.byteLength),
    };
  });
}
